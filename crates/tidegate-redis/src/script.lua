-- Decides steps over the cells of the hashes in KEYS, or writes cells if they have not changed. Called by the crate
-- tidegate-redis; call.rs describes the arguments and the reply.
--
-- Every number here is a double. All are whole and below 2^53, where doubles are exact. The only exceptions are spans
-- of time since a cell was changed or lost, which may be larger once they are multiplied. Rounding never turns a number
-- above 2^53 into one below it. So such a product is still larger than everything it is compared with, and the result
-- is right: the limit has become full in that time.
--
-- A tick is two numbers: seconds, and nanoseconds below 10^9.
local call, get, put, byte, sub, find = redis.call, struct.unpack, struct.pack, string.byte, string.sub, string.find
local EXACT, NEVER = 9007199254740992, '\0\0\0\0\0\0\0\0'

-- The usual call, whose arguments are described below: one unit or more of one GCRA limit, by the server's time. Decides
-- as `gcra` does. Comes before all functions, because making them takes a quarter of the time of a call. Whatever is
-- unusual is left to the code below, which begins anew: nothing was changed.
if ARGV[6] == '\1\1\1\1' and ARGV[7] == '' and byte(ARGV[5]) == 1 and byte(ARGV[5], 2) < 2 and ARGV[1] == 'd' then
  local now, got, never_lost = call('TIME'), redis.pcall('HMGET', KEYS[1], 'e', ARGV[8]), ARGV[2]
  if not got.err and (never_lost == '' or got[1] == never_lost) then
    local s, n, v = now[1] + 0, now[2] * 1000, got[2]
    local ls, ln = get('<I4I4', ARGV[3])
    if s > ls or (s == ls and n >= ln) then
      local _, binding, need, add, most, _, prefix, grain, rate = get('<BBddddBc0dd', ARGV[5])
      local spent, length = not v and 0, #prefix
      if v and #v == length + 15 and find(v, prefix, 1, true) == 1 then
        local vs, vn, held = get('<I4I4I7', v, length + 1)
        local back = ((s - vs) * (1e9 / grain) + (n - vn) / grain) * rate
        if back >= 0 and vn < 1e9 and held < EXACT then spent = back < held and held - back or 0 end
      end
      if spent then
        local fits = spent + need <= most
        if fits then call('HSET', KEYS[1], ARGV[8], put('<c0I4I4I7', prefix, s, n, spent + add)) end
        return { v, s, n, (fits or binding == 0) and 'y' or 'n', never_lost == '' and '' or NEVER }
      end
    end
  end
end

-- The usual batch: steps that each spend of one GCRA limit, by the server's time. The asks are those of `decide`, and
-- none is a draw. ARGV[6]: for each step two bytes, the numbers of its cell and of its ask, in the order of cells; [7]:
-- the fields of the cells, 12 bytes each. Returns the cells as they were, one after the other, with a '-' for each that
-- is missing; the time; and the numbers of the steps that are refused. An unusual cell makes the call one for `decide`:
-- nothing was changed.
if ARGV[1] == 'b' then
  local now, never_lost = call('TIME'), ARGV[2]
  local s, n = now[1] + 0, now[2] * 1000
  local ls, ln = get('<I4I4', ARGV[3])
  local many, usual = #ARGV[7] / 12, s > ls or (s == ls and n >= ln)
  local fields = { get(string.rep('c12', many), ARGV[7]) }
  local cells, first, lasts = {}, 1, {}
  for key = 1, #KEYS do
    local last = first + byte(ARGV[4], key)
    local next_field = fields[last]
    fields[last] = 'e'
    local got = redis.pcall('HMGET', KEYS[key], unpack(fields, first, last))
    fields[last] = next_field
    if got.err or (never_lost ~= '' and got[last - first + 1] ~= never_lost) then
      usual = false
      break
    end
    if #KEYS == 1 then
      cells = got
    else
      for i = 1, last - first do cells[first + i - 1] = got[i] end
    end
    first, lasts[key] = last, last - 1
  end
  cells[many + 1] = nil
  local asks, at = {}, 1
  while at <= #ARGV[5] do
    local one = { get('<BBddddBc0dd', ARGV[5], at) }
    asks[#asks + 1], at = one, one[10]
  end
  -- What has been read of the plan makes room for the fields and values to be written.
  local plan, refused, writes, number = usual and { byte(ARGV[6], 1, -1) } or {}, {}, {}, 0
  local binding, need, add, most, prefix, grain, rate, grains, length, form, head, _
  local cell, held, changed, before, amount, value, written, key = 0, 0, false, nil, 0, nil, 0, 1
  for i = 1, #plan, 2 do
    if plan[i + 1] ~= number then
      number = plan[i + 1]
      _, binding, need, add, most, _, prefix, grain, rate = unpack(asks[number], 1, 9)
      grains, length, form = 1e9 / grain, #prefix + 15, '<c' .. #prefix .. 'I4I4I7'
      head = prefix .. put('<I4I4', s, n)
    end
    if plan[i] ~= cell then
      cell = plan[i]
      local v = cells[cell]
      held = 0
      if not v then
        cells[cell] = '-'
      elseif #v ~= length then
        usual = false
        break
      else
        local begin, vs, vn, back
        begin, vs, vn, held = get(form, v)
        back = ((s - vs) * grains + (n - vn) / grain) * rate
        if begin ~= prefix or back < 0 or vn >= 1e9 or held >= EXACT then
          usual = false
          break
        end
        held = back < held and held - back or 0
      end
    end
    if held + need <= most then
      held = held + add
      -- Cells that were full are alike after the same charge.
      if held ~= amount or head ~= before then
        before, amount = head, held
        value = put('<c0I7', head, held)
      end
      if changed ~= cell then
        changed = cell
        if cell > lasts[key] then
          writes[key], written = { unpack(plan, 1, written) }, 0
          repeat key = key + 1 until cell <= lasts[key]
        end
        plan[written + 1] = fields[cell]
        written = written + 2
      end
      plan[written] = value
    elseif binding == 1 then
      refused[#refused + 1] = (i + 1) / 2
    end
  end
  if usual then
    for of, written in pairs(writes) do
      if #written > 0 then call('HSET', KEYS[of], unpack(written)) end
    end
    if written > 0 then call('HSET', KEYS[key], unpack(plan, 1, written)) end
    return { table.concat(cells), s, n, string.char(unpack(refused)) }
  end
  ARGV[1], ARGV[6], ARGV[7] = 'd', string.gsub(ARGV[6], '..', '\1\1%0'), ''
  for cell = 1, many do ARGV[7 + cell] = fields[cell] end
end

-- For how many seconds time stands still after a step back: for one by the server's clock alone, for ten if steps are
-- also decided by callers' clocks, which differ.
local STILL = byte(ARGV[3], 9) == 1 and 10 or 1

-- Returns whether the tick (s, n) lies more than `still` seconds before (fs, fn). Then the clock was set back, and the
-- library has to decide.
local function far_behind(s, n, fs, fn, still)
  return fs - s > still or (fs - s == still and fn > n)
end

-- Returns what a draw spends if its whole cost is more than the limit has left: as many units as fit, without those
-- that are kept back. Returns false if not even one unit fits, and for charges that are not draws; those have no unit.
-- `left` may be below zero. A quotient of two whole numbers below 2^53 is rounded to a whole number only if it is one.
local function drawn(left, unit, kept_back)
  local units = unit and math.floor(left / unit) - kept_back or 0
  return units >= 1 and units * unit
end

-- Decides a charge of a GCRA limit. This function and `window` are the rules. A rule returns the new cell, false if the
-- charge is refused, or nil if the library has to decide.
-- v: the cell, or false if there is none; (s, n): the present; (es, en): when the cells of the shard were lost, zeros
-- if never; the other parameters are those that `ask` returns.
local function gcra(v, s, n, es, en, prefix, need, add, most, horizon, unit, kept_back, grain, rate)
  local spent, grains, length = 0, 1e9 / grain, #prefix
  if v then
    if v == true or #v ~= length + 15 or find(v, prefix, 1, true) ~= 1 then return nil end
    local ls, ln, held = get('<I4I4I7', v, length + 1)
    if ln >= 1e9 or held >= EXACT then return nil end
    if es > 0 and (ls < es or (ls == es and ln < en)) and (s - es) * grains + (n - en) / grain < horizon then
      return nil
    end
    if s < ls or (s == ls and n < ln) then
      -- The clock stepped back: no time passes for the cell.
      if far_behind(s, n, ls, ln, STILL) then return nil end
      s, n, spent = ls, ln, held
    else
      local back = ((s - ls) * grains + (n - ln) / grain) * rate
      if back < held then spent = held - back end
    end
  elseif es > 0 and (s - es) * grains + (n - en) / grain < horizon then
    return nil
  end
  if spent + need > most then
    add = drawn(most - spent, unit, kept_back)
    if not add then return false end
  end
  return put('<c0I4I4I7', prefix, s, n, spent + add)
end

-- Decides a charge of a windowed limit. For a calendar window the caller gives its first and last tick, (cs, cn) and
-- (ds, dn); all other windows have a span.
local function window(v, s, n, es, en, prefix, need, add, most, horizon, unit, kept_back, wait, span, span_n, cs, cn, ds, dn)
  local fs, fn, ts, tn, used, length = 0, 0, 0, 0, 0, #prefix
  if v then
    if v == true or #v ~= length + (cs and 31 or 23) or find(v, prefix, 1, true) ~= 1 then return nil end
    local ls, ln
    if cs then
      ls, ln, fs, fn, ts, tn, used = get('<I4I4I4I4I4I4I7', v, length + 1)
    else
      ls, ln, fs, fn, used = get('<I4I4I4I4I7', v, length + 1)
      ts, tn = fs + span, fn + span_n
      if tn >= 1e9 then ts, tn = ts + 1, tn - 1e9 end
    end
    if ln >= 1e9 or fn >= 1e9 or tn >= 1e9 or used >= EXACT then return nil end
    if es > 0 and (ls < es or (ls == es and ln < en)) and (s - es) * 1e9 + n - en < horizon then return nil end
    if s < ls or (s == ls and n < ln) then
      -- The edges of the calendar do not move with the clock, so such a window may stand still.
      if far_behind(s, n, ls, ln, cs and 10 or STILL) then return nil end
      s, n = ls, ln
    end
  elseif es > 0 and (s - es) * 1e9 + n - en < horizon then
    return nil
  end
  if used > 0 and (s < ts or (s == ts and n <= tn)) then
    if used + need > most then
      -- A charge that may wait until the window ends is booked in the next window, which the library opens.
      if (ts - s) * 1e9 + tn - n < wait then return nil end
      add = drawn(most - used, unit, kept_back)
      if not add then return false end
    end
  else
    if need > most then return false end
    fs, fn, used = s, n, 0
    if cs then
      -- By the server's clock it is another window than the caller expects: the library has to decide.
      fs, fn, ts, tn = cs, cn, ds, dn
      if s < fs or (s == fs and n < fn) or s > ts or (s == ts and n > tn) then return nil end
    end
  end
  if cs then return put('<c0I4I4I4I4I4I4I7', prefix, s, n, fs, fn, ts, tn, used + add) end
  return put('<c0I4I4I4I4I7', prefix, s, n, fs, fn, used + add)
end

-- Reads the ask at position `at` of the text: what one charge asks for. Returns the position of the next ask, and then
-- the arguments for `apply`. These are separate values, because making a table with names takes a tenth of the time of
-- a call. A draw asks for the most that it may ever get; it also has a unit, and a number of units that are kept back.
local function ask(text, at)
  local kind, flags, need, add, most, horizon, length
  kind, flags, need, add, most, horizon, length, at = get('<BBddddB', text, at)
  local binding, prefix, unit, kept_back = flags % 2 == 1, sub(text, at, at + length - 1), false, 0
  at = at + length
  if flags >= 2 then unit, kept_back, at = get('<dd', text, at) end
  if kind == 1 then
    local grain, rate, next = get('<dd', text, at)
    return next, gcra, binding, prefix, need, add, most, horizon, unit, kept_back, grain, rate
  elseif kind == 2 then
    local wait, span, span_n, next = get('<ddd', text, at)
    return next, window, binding, prefix, need, add, most, horizon, unit, kept_back, wait, span, span_n
  end
  local wait, fs, fn, ts, tn, next = get('<dI4I4I4I4', text, at)
  return next, window, binding, prefix, need, add, most, horizon, unit, kept_back, wait, 0, 0, fs, fn, ts, tn
end

-- Calls the rule of a charge. Returns whether the charge can refuse its step, and the result of the rule.
local function apply(v, s, n, es, en, _, rule, binding, ...)
  return binding, rule(v, s, n, es, en, ...)
end

-- Returns the packed tick at which the cells of a hash were lost, and whether this loss is not recorded yet. The epoch
-- is a field of the hash: the run of the server that wrote last, and the tick at which cells of an earlier run were
-- lost. If the epoch is of another run, or missing, the cells count as lost now. Without a run, losses are not watched.
local function lost_at(epoch, run, s, n)
  if run == '' then return '', false end
  if epoch and #epoch == 24 and sub(epoch, 1, 16) == run then return sub(epoch, 17), false end
  return put('<I4I4', s, n), true
end

-- Returns the server's time, or the tick that the node has seen last if that is later: after a small step back of the
-- clock, time stands still. After a large step back the clock is followed, and each cell handles that by itself. If
-- steps are also decided by callers' clocks, time never steps back.
local function time()
  local now = call('TIME')
  local ls, ln, by_callers = get('<I4I4B', ARGV[3])
  local s, n = tonumber(now[1]), now[2] * 1000
  if (ls > s or (ls == s and ln > n)) and (by_callers == 1 or not far_behind(s, n, ls, ln, STILL)) then return ls, ln end
  return s, n
end

-- The arguments of a call that decides (ARGV[1] is 'd'): ARGV[2]: the epoch of a hash that this run has written and that
-- has lost nothing, or empty; [3]: the tick that the node has seen last,
-- and 1 if it may be from a caller's clock; [4]: the number of cells in each hash, one byte each; [5]: the asks; [6]:
-- the plan; [7]: a tick for each step, or empty for the server's time; from [8] on: the fields of the cells.
-- The plan has for each step a byte with the operation (1: spend or draw, 2: decide without a change, 3: leave it to
-- the library), a byte with the number of charges, and for each charge two bytes: the numbers of its cell and of its
-- ask.
--
-- Returns the cells as they were; the time, as seconds and nanoseconds; a letter for each step (y: allowed, n: refused,
-- c: left to the library); and for each hash the tick at which it lost cells.
--
-- This block handles the usual call: one step over one cell, by the server's time. It decides as `decide` does, but
-- needs no lists. It comes before the functions that only other calls need, so that a usual call does not make them.
if ARGV[1] == 'd' and #ARGV == 8 and #ARGV[6] == 4 and ARGV[7] == '' then
  local s, n = time()
  local key, field, run = KEYS[1], ARGV[8], sub(ARGV[2], 1, 16)
  local lost, v, news = run == '' and '' or NEVER, true, false
  local got = redis.pcall('HMGET', key, 'e', field)
  if not got.err then
    v = got[2]
    lost, news = lost_at(got[1], run, s, n)
    if news then call('HSET', key, 'e', run .. lost) end
  elseif find(got.err, 'WRONGTYPE', 1, true) ~= 1 then
    return got
  end
  local op, letter = byte(ARGV[6]), 'c'
  if op < 3 then
    local es, en = 0, 0
    if lost ~= '' and lost ~= NEVER then es, en = get('<I4I4', lost) end
    local binding, follows = apply(v, s, n, es, en, ask(ARGV[5], 1))
    if follows then
      letter = 'y'
      if op == 1 then call('HSET', key, field, follows) end
    elseif follows == false then
      letter = binding and 'n' or 'y'
    end
  end
  return { v, s, n, letter, lost }
end

-- Reads the cells of each hash. Losses are recorded before anything is decided. The epoch is read after the cells of
-- its hash, so that with a single hash the reply is the list of all cells, without a copy.
local function read(run, counts, first, s, n)
  local values, lost, cells, anew = {}, {}, 0, {}
  for key = 1, #KEYS do
    local many = byte(counts, key)
    local last = first + cells + many
    local next_field = ARGV[last]
    ARGV[last] = 'e'
    local got = redis.pcall('HMGET', KEYS[key], unpack(ARGV, first + cells, last))
    ARGV[last] = next_field
    if got.err then
      if find(got.err, 'WRONGTYPE', 1, true) ~= 1 then return nil, got end
      lost[key] = run == '' and '' or NEVER
      for i = 1, many do values[cells + i] = true end
    else
      local news
      lost[key], news = lost_at(got[many + 1], run, s, n)
      if news then anew[#anew + 1] = KEYS[key] end
      if #KEYS == 1 then
        values = got
      else
        for i = 1, many do values[cells + i] = got[i] end
      end
    end
    cells = cells + many
  end
  for i = 1, #anew do call('HSET', anew[i], 'e', run .. put('<I4I4', s, n)) end
  return values, lost, cells
end

-- Returns for each cell the tick at which the cells of its hash were lost, as a list of seconds and one of nanoseconds
-- (no entries if never), and whether any were lost.
local function losses(lost, counts)
  local es, en, first, some = {}, {}, 1, false
  for key = 1, #KEYS do
    local many = byte(counts, key)
    if lost[key] ~= '' and lost[key] ~= NEVER then
      local ks, kn = get('<I4I4', lost[key])
      some = true
      for cell = first, first + many - 1 do es[cell], en[cell] = ks, kn end
    end
    first = first + many
  end
  return es, en, some
end

-- Writes the new cells, with one command per hash.
local function write_all(after, counts)
  local cell = 0
  for key = 1, #KEYS do
    local writes, many = {}, 0
    for _ = 1, byte(counts, key) do
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

local function decide()
  local ticks, s, n = ARGV[7], 0, 0
  local by_caller = #ticks > 0
  if by_caller then
    s, n = get('<I4I4', ticks)
  else
    s, n = time()
  end
  local values, lost, cells = read(sub(ARGV[2], 1, 16), ARGV[4], 8, s, n)
  if not values then return lost end
  local es, en, some_lost = losses(lost, ARGV[4])
  -- Each ask is read once, however many charges refer to it.
  local asks, text, ends = {}, ARGV[5], 1
  while ends <= #text do
    local one = { ask(text, ends) }
    asks[#asks + 1], ends = one, one[1]
  end
  local plan, at, step, letters = { byte(ARGV[6], 1, -1) }, 1, 0, {}
  local follow, after, held, some_held, changed = {}, {}, {}, false, false
  for cell = 1, cells do after[cell] = false end
  -- The ask of the previous charge, because consecutive charges are mostly of one policy. a to g are the arguments that
  -- only its rule knows.
  local number, _, rule, binding, prefix, need, add, most, horizon, unit, kept_back, a, b, c, d, e, f, g = 0
  local plain, length, grains, head, ls, ln = false, 0, 0, '', 0, 0
  while plan[at] do
    local op, many, letter = plan[at], plan[at + 1], 121
    step = step + 1
    if by_caller then
      s, n = get('<I4I4', ticks, 8 * step - 7)
      number = 0
    end
    for i = at + 2, at + 2 * many, 2 do
      local cell, follows = plan[i], nil
      if op < 3 and not (some_held and held[cell]) then
        if plan[i + 1] ~= number then
          number = plan[i + 1]
          _, rule, binding, prefix, need, add, most, horizon, unit, kept_back, a, b, c, d, e, f, g =
            unpack(asks[number], 1, 17)
          plain = rule == gcra and not unit and not some_lost
          if plain then
            length, grains, head = #prefix, 1e9 / a, prefix .. put('<I4I4', s, n)
          end
        end
        local v = after[cell] or values[cell]
        -- The usual charge is decided here as in `gcra`, with the grain in a and the rate in b: the call of that
        -- function would add a tenth to the time. A cell that is unusual in any way is left to the rule.
        local decided = false
        if plain and v and v ~= true and #v == length + 15 and find(v, prefix, 1, true) == 1 then
          local vs, vn, spent = get('<I4I4I7', v, length + 1)
          local back = ((s - vs) * grains + (n - vn) / a) * b
          if back >= 0 and vn < 1e9 and spent < EXACT then
            spent = back < spent and spent - back or 0
            follows, decided = spent + need <= most and put('<c0I7', head, spent + add), true
          end
        end
        if not decided then
          if some_lost then ls, ln = es[cell] or 0, en[cell] or 0 end
          follows = rule(v, s, n, ls, ln, prefix, need, add, most, horizon, unit, kept_back, a, b, c, d, e, f, g)
        end
      end
      if follows then
        if many == 1 and op == 1 then
          after[cell], changed = follows, true
        else
          follow[i] = follows
        end
      elseif follows == nil then
        letter = 99
        break
      else
        if binding then letter = 110 end
        follow[i] = false
      end
    end
    if letter == 99 then
      -- Later steps over these cells are left to the library too, so that the order of steps is kept.
      for i = at + 2, at + 2 * many, 2 do held[plan[i]], some_held = true, true end
    elseif many > 1 and letter == 121 and op == 1 then
      for i = at + 2, at + 2 * many, 2 do
        if follow[i] then after[plan[i]], changed = follow[i], true end
      end
    end
    letters[step] = letter
    at = at + 2 + 2 * many
  end
  if changed then write_all(after, ARGV[4]) end
  values[cells + 1], values[cells + 2] = s, n
  values[cells + 3], values[cells + 4] = string.char(unpack(letters)), table.concat(lost)
  return values
end

-- Writes cells if none of them has changed. ARGV[2]: the run; [3]: the number of cells in each hash; then for each cell
-- its field, the content it must still have, and the new content. Empty content means that there is no cell, and '!'
-- that the key holds a value that is not a hash. Returns 1 if it wrote, and 0 if a cell has changed or a hash has the
-- epoch of another run.
local function write()
  local run, at = ARGV[2], 4
  for key = 1, #KEYS do
    local kind = call('TYPE', KEYS[key]).ok
    local hash = kind == 'hash' or kind == 'none'
    if hash and run ~= '' then
      local e = call('HGET', KEYS[key], 'e')
      if not e or sub(e, 1, 16) ~= run then return 0 end
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

-- Deletes the cells of one hash that have not changed. ARGV[2]: the run; then the fields of the cells; then their
-- contents. Returns how many were deleted: none if the hash has the epoch of another run.
local function sweep()
  local run, many = ARGV[2], (#ARGV - 2) / 2
  local got = redis.pcall('HMGET', KEYS[1], 'e', unpack(ARGV, 3, 2 + many))
  if got.err or (run ~= '' and (not got[1] or sub(got[1], 1, 16) ~= run)) then return 0 end
  local full = {}
  for i = 1, many do
    if got[1 + i] == ARGV[2 + many + i] then full[#full + 1] = ARGV[2 + i] end
  end
  return #full > 0 and call('HDEL', KEYS[1], unpack(full)) or 0
end

-- Returns the numbers of some fields of a section of INFO.
local function info(section, ...)
  local text, numbers = call('INFO', section), {}
  for i, name in ipairs({ ... }) do numbers[i] = tonumber(string.match(text, '\n' .. name .. ':([%d.]+)')) or 0 end
  return unpack(numbers)
end

-- Writes the report of a node, with the time, or removes it if it is empty. ARGV[2]: the node; [3]: the report. Returns
-- a line with the bytes that the server uses and may use, and the milliseconds of processor time of its main thread; then
-- the reports of all nodes of the last ten seconds, one a line. Deletes the others.
if ARGV[1] == 'n' then
  local now, reports = call('TIME')[1] + 0, {}
  call('HSET', KEYS[1], ARGV[2], put('<I4', ARGV[3] == '' and 0 or now) .. ARGV[3])
  local all = call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    local at = #all[i + 1] > 4 and get('<I4', all[i + 1]) or 0
    if now - at > 10 or at > now + 10 then
      call('HDEL', KEYS[1], all[i])
    else
      reports[#reports + 1] = sub(all[i + 1], 5)
    end
  end
  local used, most, all_there_is = info('memory', 'used_memory', 'maxmemory', 'total_system_memory')
  local user, system = info('cpu', 'used_cpu_user_main_thread', 'used_cpu_sys_main_thread')
  local load = string.format('%d %d %d', used, most > 0 and most or all_there_is, (user + system) * 1000)
  table.insert(reports, 1, load)
  return table.concat(reports, '\n')
end

if ARGV[1] == 'd' then return decide() end
if ARGV[1] == 's' then return sweep() end
return write()
