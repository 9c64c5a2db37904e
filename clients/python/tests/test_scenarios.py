"""The scenarios of all clients, with the client for threads and that for asyncio."""

from __future__ import annotations

import asyncio
import inspect
import time
import unittest
from typing import Any, Dict, Optional, Type

import tidegate
from serving import Server, scenario_file

KINDS: Dict[str, Type[tidegate.TidegateError]] = {
    "input": tidegate.InputError,
    "access": tidegate.AccessError,
    "ticket": tidegate.TicketError,
    "unavailable": tidegate.Unavailable,
}


def compare(where: str, expected: Any, got: Any) -> None:
    if isinstance(expected, dict) and expected and set(expected) <= {"at_least", "at_most"}:
        low, high = expected.get("at_least", 0), expected.get("at_most", 1e12)
        assert isinstance(got, (int, float)) and low <= got <= high, f"{where}: {got!r} is not in {expected}"
        return
    if isinstance(got, tuple):
        got = list(got)
    assert type(expected) is type(got) and expected == got, f"{where}: {got!r} is not {expected!r}"


class Runner:
    """Runs scenarios with one kind of client."""

    def __init__(self, server: Server, token: str, asynchronous: bool) -> None:
        self._server, self._token, self._asynchronous = server, token, asynchronous
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        self._loop.close()

    def _call(self, value: Any) -> Any:
        return self._loop.run_until_complete(value) if inspect.isawaitable(value) else value

    def run(self, scenario: Dict[str, Any]) -> None:
        kind: Any = tidegate.AsyncClient if self._asynchronous else tidegate.Client
        options = {"token": self._token, "deadline": 10, **scenario.get("client", {})}
        self._client = kind(self._server.url, **options)
        self._held: Dict[str, Any] = {}
        try:
            for number, step in enumerate(scenario["steps"]):
                for _ in range(step.get("times", 1)):
                    self._step(f"step {number + 1}", step)
        finally:
            self._call(self._client.aclose() if self._asynchronous else self._client.close())

    def _step(self, where: str, step: Dict[str, Any]) -> None:
        expected: Dict[str, Any] = dict(step.get("expect", {}))
        got: Dict[str, Any] = {}
        begin = time.monotonic()
        error: Optional[tidegate.TidegateError] = None
        try:
            got = self._do(step)
        except tidegate.TidegateError as raised:
            error = raised
        took = time.monotonic() - begin
        if "took" in expected:
            compare(f"{where}: took", expected.pop("took"), took)
        told = expected.pop("error", None)
        if told is None:
            assert error is None, f"{where}: {error!r}"
        else:
            assert error is not None, f"{where}: {got!r} is no error"
            assert isinstance(error, KINDS[told["kind"]]), f"{where}: {error!r} is not {told}"
            assert error.status is None or error.status == told.get("status", error.status), f"{where}: {error.status}"
            assert all(text in str(error) for text in told.get("says", [])), f"{where}: {error} lacks {told['says']}"
            return
        for name, value in expected.items():
            at = f"{where}: {name}"
            if name == "says":
                assert all(text in got["detail"] for text in value), f"{at}: {got['detail']}"
            elif name == "note":
                assert value in got["note"], f"{at}: {got['note']}"
            elif name == "charges":
                self._charges(at, value, got["charges"])
            else:
                compare(at, value, got[name])

    @staticmethod
    def _charges(where: str, expected: Dict[str, Any], got: Dict[str, tidegate.Charge]) -> None:
        assert expected or not got, f"{where}: {got}"
        for name, fields in expected.items():
            for field, value in fields.items():
                have = getattr(got[name], field)
                if field == "note":
                    assert value in have, f"{where} of {name}: {have}"
                else:
                    compare(f"{where} of {name}: {field}", value, have)

    def _do(self, step: Dict[str, Any]) -> Dict[str, Any]:
        client, call = self._client, self._call
        if "server" in step:
            getattr(self._server, step["server"])()
        elif "pause" in step:
            time.sleep(step["pause"])
        elif "check" in step:
            decision = call(client.check(**step["check"]))
            self._held[step.get("as", "")] = decision
            return self._decided(decision)
        elif "peek" in step:
            return self._decided(call(client.peek(**step["peek"])))
        elif "spend" in step or "acquire" in step:
            return self._begin(step)
        elif "release" in step:
            work = self._held[step["release"]["of"]]
            if "outcome" in step["release"]:
                work.settle(outcome=step["release"]["outcome"])
            self._leave(work, None)
            assert isinstance(work.settled, tidegate.Settled), work.settled
            return dict(vars(work.settled))
        elif "settle" in step:
            fields = dict(step["settle"])
            ticket = self._held[fields.pop("of")] if "of" in fields else fields.pop("ticket")
            return dict(vars(call(client.settle(ticket, **fields))))
        elif "extend" in step:
            return {"lapses_after": call(self._held[step["extend"]["of"]].extend())}
        else:
            raise AssertionError(f"an unknown step: {step}")
        return {}

    def _begin(self, step: Dict[str, Any]) -> Dict[str, Any]:
        work = self._client.spend(**step["spend"]) if "spend" in step else self._client.acquire(**step["acquire"])
        try:
            self._call(work.__aenter__() if self._asynchronous else work.__enter__())
        except tidegate.Denied as denied:
            return self._decided(denied.decision)
        self._held[step.get("as", "")] = work
        if "spend" not in step:
            return self._decided(work.decision)
        if "settle" in step:
            work.settle(**step["settle"])
        self._leave(work, ValueError("the block raises") if step.get("raises") else None)
        assert isinstance(work.settled, tidegate.Settled), work.settled
        return {**self._decided(work.decision), **vars(work.settled)}

    def _leave(self, work: Any, error: Optional[BaseException]) -> None:
        leave = work.__aexit__ if self._asynchronous else work.__exit__
        self._call(leave(None if error is None else type(error), error, None))

    @staticmethod
    def _decided(decision: tidegate.Decision) -> Dict[str, Any]:
        fields = {"limited": decision.limited, "would_deny": decision.would_deny}
        return {**vars(decision), **fields, "ticket": decision.ticket is not None}


class Scenarios(unittest.TestCase):
    def _all(self, asynchronous: bool) -> None:
        file = scenario_file()
        self.assertEqual(file["form"], 1)
        with Server(file["policy_file"], token=file["token"]) as server:
            runner = Runner(server, file["token"], asynchronous)
            for scenario in file["scenarios"]:
                with self.subTest(scenario["name"]):
                    runner.run(scenario)
            runner.close()

    def test_threads(self) -> None:
        self._all(asynchronous=False)

    def test_asyncio(self) -> None:
        self._all(asynchronous=True)

    def test_a_wrong_expectation_fails(self) -> None:
        file = scenario_file()
        with Server(file["policy_file"], token=file["token"]) as server:
            runner = Runner(server, file["token"], asynchronous=False)
            ask = {"attributes": {"app": "rate", "user.id": "expected"}}
            for expected in (
                {"allowed": False},
                {"remaining": 7},
                {"remaining": 1.0},
                {"took": {"at_least": 9}},
                {"error": {"kind": "input"}},
                {"no-such-field": 1},
            ):
                with self.assertRaises((AssertionError, KeyError), msg=str(expected)):
                    runner.run({"steps": [{"peek": ask, "expect": expected}]})
            with self.assertRaises(AssertionError):
                runner.run({"steps": [{"peek": {**ask, "cost": 0}, "expect": {"allowed": True}}]})
            runner.close()
