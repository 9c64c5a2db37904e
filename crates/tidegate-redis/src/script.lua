-- Decides steps over the cells of the hashes KEYS, or writes cells if they have not changed. Sent by tidegate-redis; see call.rs.
--
-- Every number here is a double. All of them are whole and below 2^53, where doubles are exact, but for spans of time since a cell was
-- changed: such a span, times the rate, may be larger. Rounding never brings a number from above 2^53 to below it, so it is then still
-- larger than anything it is compared with, and the limit has been full meanwhile either way.
--
-- Ticks are two numbers: seconds, and nanoseconds below 10^9.
local call, get, put, byte = redis.call, struct.unpack, struct.pack, string.byte
local EXACT, FAR, NEVER = 9007199254740992, 10, string.rep('\0', 8)

-- Says whether the tick (s, n) lies more than ten seconds before (fs, fn): the clock was set back, and the library says what follows.
local function far_behind(s, n, fs, fn)
  return fs - s > FAR or (fs - s == FAR and fn > n)
end

-- Returns what a draw spends whose whole cost does not fit into what is left: as many units as fit beside those that are kept back. False
-- where not one does, and for charges that are no draws. What is left may be below zero. The quotient of two whole numbers below 2^53
-- rounds to a whole number only where it is one.
local function drawn(a, left)
  local units = a.draws and math.floor(left / a.unit) - a.kept_back or 0
  return units >= 1 and units * a.unit
end

-- A rule returns the cell that follows, false where the charge is refused, or nil where the library has to decide.
-- v: the cell, false where there is none; a: what is asked; (s, n): now; (es, en): when the shard's cells were lost, zeros for never.
local function gcra(v, a, s, n, es, en)
  local spent = 0
  if v then
    if v == true or #v ~= a.length then return nil end
    local prefix, ls, ln, held = get(a.form, v)
    if prefix ~= a.prefix or ln >= 1e9 or held >= EXACT then return nil end
    if es > 0 and (ls < es or (ls == es and ln < en)) and (s - es) * a.grains + (n - en) / a.grain < a.horizon then
      return nil
    end
    if s < ls or (s == ls and n < ln) then
      -- The clock stepped back: the cell stands still.
      if far_behind(s, n, ls, ln) then return nil end
      s, n, spent = ls, ln, held
    else
      local back = ((s - ls) * a.grains + (n - ln) / a.grain) * a.rate
      if back < held then spent = held - back end
    end
  elseif es > 0 and (s - es) * a.grains + (n - en) / a.grain < a.horizon then
    return nil
  end
  local add = a.add
  if spent + a.need > a.most then
    add = drawn(a, a.most - spent)
    if not add then return false end
  end
  return put(a.form, a.prefix, s, n, spent + add)
end

local function window(v, a, s, n, es, en)
  local fs, fn, ts, tn, used = 0, 0, 0, 0, 0
  if v then
    if v == true or #v ~= a.length then return nil end
    local prefix, ls, ln
    if a.calendar then
      prefix, ls, ln, fs, fn, ts, tn, used = get(a.form, v)
    else
      prefix, ls, ln, fs, fn, used = get(a.form, v)
      ts, tn = fs + a.span, fn + a.span_n
      if tn >= 1e9 then ts, tn = ts + 1, tn - 1e9 end
    end
    if prefix ~= a.prefix or ln >= 1e9 or fn >= 1e9 or tn >= 1e9 or used >= EXACT then return nil end
    if es > 0 and (ls < es or (ls == es and ln < en)) and (s - es) * 1e9 + n - en < a.horizon then return nil end
    if s < ls or (s == ls and n < ln) then
      if far_behind(s, n, ls, ln) then return nil end
      s, n = ls, ln
    end
  elseif es > 0 and (s - es) * 1e9 + n - en < a.horizon then
    return nil
  end
  local add = a.add
  if used > 0 and (s < ts or (s == ts and n <= tn)) then
    if used + a.need > a.most then
      -- Whoever waits until the window ends opens the next one ahead of time.
      if (ts - s) * 1e9 + tn - n < a.wait then return nil end
      add = drawn(a, a.most - used)
      if not add then return false end
    end
  else
    if a.need > a.most then return false end
    fs, fn, used = s, n, 0
    if a.calendar then
      -- The window that the caller expects; an engine whose clock is in another one asks the library.
      fs, fn, ts, tn = a.fs, a.fn, a.ts, a.tn
      if s < fs or (s == fs and n < fn) or s > ts or (s == ts and n > tn) then return nil end
    end
  end
  if a.calendar then return put(a.form, a.prefix, s, n, fs, fn, ts, tn, used + add) end
  return put(a.form, a.prefix, s, n, fs, fn, used + add)
end

-- What charges ask for: each kind of charge once, however many name it. A draw asks for the most that it may ever get, and says what a unit
-- is and how many units are kept back.
local function asks_of(text)
  local asks, at, many = {}, 1, 0
  while at <= #text do
    local a, length = {}, 0
    local kind, flags
    kind, flags, a.need, a.add, a.most, a.horizon, length, at = get('<BBddddB', text, at)
    a.prefix, at = get('<c' .. length, text, at)
    a.binding, a.draws = flags % 2 == 1, flags >= 2
    if a.draws then a.unit, a.kept_back, at = get('<dd', text, at) end
    if kind == 1 then
      a.rule, a.form, a.length = gcra, '<c' .. length .. 'I4I4I7', length + 15
      a.grain, a.rate, at = get('<dd', text, at)
      a.grains = 1e9 / a.grain
    elseif kind == 2 then
      a.rule, a.form, a.length = window, '<c' .. length .. 'I4I4I4I4I7', length + 23
      a.wait, a.span, a.span_n, at = get('<ddd', text, at)
    else
      a.rule, a.form, a.length, a.calendar = window, '<c' .. length .. 'I4I4I4I4I4I4I7', length + 31, true
      a.wait, a.fs, a.fn, a.ts, a.tn, at = get('<dI4I4I4I4', text, at)
    end
    many = many + 1
    asks[many] = a
  end
  return asks
end

-- Returns when the cells of a hash were lost, as its epoch tells it, and whether that is news. The epoch is kept beside the cells: the run of
-- the server that wrote last, and when an earlier one's cells were lost. A hash of another run, or without an epoch, has lost them now.
local function lost_at(epoch, run, s, n)
  if run == '' then return '', false end
  if epoch and #epoch == 24 and string.sub(epoch, 1, 16) == run then return string.sub(epoch, 17), false end
  return put('<I4I4', s, n), true
end

-- Reads the cells of each hash. What was lost is written down before anything is decided by it.
local function read(run, counts, first, s, n)
  local values, lost, cells, anew = {}, {}, 0, {}
  for key = 1, #KEYS do
    local many = byte(counts, key)
    local got = redis.pcall('HMGET', KEYS[key], 'e', unpack(ARGV, first + cells, first + cells + many - 1))
    if got.err then
      if string.find(got.err, 'WRONGTYPE', 1, true) ~= 1 then return nil, got end
      lost[key] = run == '' and '' or NEVER
      for i = 1, many do values[cells + i] = true end
    else
      local news
      lost[key], news = lost_at(got[1], run, s, n)
      if news then anew[#anew + 1] = KEYS[key] end
      for i = 1, many do values[cells + i] = got[i + 1] end
    end
    cells = cells + many
  end
  for i = 1, #anew do call('HSET', anew[i], 'e', run .. put('<I4I4', s, n)) end
  return values, lost, cells
end

-- The usual call: one step over one cell. Decides as `decide` does, without the lists.
local function one(run, s, n)
  local lost, v, news = run == '' and '' or NEVER, true, false
  local got = redis.pcall('HMGET', KEYS[1], 'e', ARGV[8])
  if not got.err then
    v = got[2]
    lost, news = lost_at(got[1], run, s, n)
    if news then call('HSET', KEYS[1], 'e', run .. lost) end
  elseif string.find(got.err, 'WRONGTYPE', 1, true) ~= 1 then
    return got
  end
  local op, letter = byte(ARGV[6]), 'c'
  if op < 3 then
    local es, en = 0, 0
    if lost ~= '' and lost ~= NEVER then es, en = get('<I4I4', lost) end
    local a = asks_of(ARGV[5])[1]
    local follows = a.rule(v, a, s, n, es, en)
    if follows then
      letter = 'y'
      if op == 1 then call('HSET', KEYS[1], ARGV[8], follows) end
    elseif follows == false then
      letter = a.binding and 'n' or 'y'
    end
  end
  return { v, s, n, letter, lost }
end

-- ARGV[2]: the run; [3]: the latest tick that the node has seen, and 1 where it may be a caller's; [4]: how many cells each hash has, a byte
-- each; [5]: the asks; [6]: the plan; [7]: a tick for each step, or nothing for the server's time; [8] and on: the fields of the cells.
-- The plan has for each step a byte that says what to do (1: spend or draw, 2: look, 3: leave it to the library), a byte with the number of
-- charges, and two bytes for each charge: the number of its cell and that of its ask.
--
-- Returns the cells as they were; the time, as seconds and nanoseconds; a letter for each step (y: allowed, n: refused, c: left to the
-- library); and for each hash the tick at which it lost cells.
local function decide()
  local ticks, s, n = ARGV[7], 0, 0
  local by_caller = #ticks > 0
  if by_caller then
    s, n = get('<I4I4', ticks)
  else
    local now = call('TIME')
    local ls, ln, by_callers = get('<I4I4B', ARGV[3])
    s, n = tonumber(now[1]), now[2] * 1000
    -- A clock that stepped back a little stands still; one that stepped back far is followed, and cells stand still by themselves. Where
    -- steps are also asked by callers' clocks, time never steps back.
    if (ls > s or (ls == s and ln > n)) and (by_callers == 1 or not far_behind(s, n, ls, ln)) then s, n = ls, ln end
  end
  if #ARGV == 8 and #ARGV[6] == 4 and not by_caller then return one(ARGV[2], s, n) end
  local values, lost, cells = read(ARGV[2], ARGV[4], 8, s, n)
  if not values then return lost end
  local asks, plan, at, step, letters = asks_of(ARGV[5]), { byte(ARGV[6], 1, -1) }, 1, 0, {}
  local next, after, held, changed = {}, {}, {}, false
  local es, en = {}, {}
  local first = 1
  for key = 1, #KEYS do
    local many = byte(ARGV[4], key)
    if lost[key] ~= '' and lost[key] ~= NEVER then
      local ks, kn = get('<I4I4', lost[key])
      for cell = first, first + many - 1 do es[cell], en[cell] = ks, kn end
    end
    first = first + many
  end
  while plan[at] do
    local op, many, letter = plan[at], plan[at + 1], 121
    step = step + 1
    if by_caller then s, n = get('<I4I4', ticks, 8 * step - 7) end
    for i = 1, many do
      local cell, a = plan[at + 2 * i], asks[plan[at + 2 * i + 1]]
      local v, follows = after[cell], nil
      if v == nil then v = values[cell] end
      if op < 3 and not held[cell] then follows = a.rule(v, a, s, n, es[cell] or 0, en[cell] or 0) end
      if follows == nil then
        letter = 99
        break
      end
      if not follows and a.binding then letter = 110 end
      next[i] = follows
    end
    if letter == 99 then
      -- Later steps over these cells wait for the library as well: the order of steps is kept.
      for i = 1, many do held[plan[at + 2 * i]] = true end
    elseif letter == 121 and op == 1 then
      for i = 1, many do
        if next[i] then
          after[plan[at + 2 * i]] = next[i]
          changed = true
        end
      end
    end
    letters[step] = letter
    at = at + 2 + 2 * many
  end
  if changed then
    local cell = 0
    for key = 1, #KEYS do
      local writes, many = {}, 0
      for _ = 1, byte(ARGV[4], key) do
        cell = cell + 1
        local value = after[cell]
        if value then
          writes[many + 1], writes[many + 2] = ARGV[7 + cell], value
          many = many + 2
        end
      end
      if many > 0 then call('HSET', KEYS[key], unpack(writes)) end
    end
  end
  values[cells + 1], values[cells + 2] = s, n
  values[cells + 3], values[cells + 4] = string.char(unpack(letters)), table.concat(lost)
  return values
end

-- ARGV: run, cells of each hash, and of each cell its field, what it must still hold, and what is written; nothing stands for no cell, and
-- one letter for a key that is no hash. Returns 1 where it wrote, and 0 where something has changed.
local function write()
  local run, at = ARGV[2], 4
  for key = 1, #KEYS do
    local kind = call('TYPE', KEYS[key]).ok
    local hash = kind == 'hash' or kind == 'none'
    if hash and run ~= '' then
      local e = call('HGET', KEYS[key], 'e')
      if not e or string.sub(e, 1, 16) ~= run then return 0 end
    end
    for _ = 1, byte(ARGV[3], key) do
      local found = hash and (call('HGET', KEYS[key], ARGV[at]) or '') or '!'
      if found ~= ARGV[at + 1] then return 0 end
      at = at + 3
    end
  end
  at = 4
  for key = 1, #KEYS do
    if call('TYPE', KEYS[key]).ok ~= 'hash' then call('DEL', KEYS[key]) end
    for _ = 1, byte(ARGV[3], key) do
      if ARGV[at + 2] == '' then call('HDEL', KEYS[key], ARGV[at]) else call('HSET', KEYS[key], ARGV[at], ARGV[at + 2]) end
      at = at + 3
    end
  end
  return 1
end

if ARGV[1] == 'd' then return decide() end
return write()
