"""One run in the coordinator: the shell around the state machine, which it feeds and whose actions it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from jupyter_torchdist.config import jsonable
from jupyter_torchdist.coordinator import machine
from jupyter_torchdist.coordinator.agents import Agent, Agents
from jupyter_torchdist.coordinator.failures import card, in_order, is_consequence
from jupyter_torchdist.coordinator.journal import Journal
from jupyter_torchdist.coordinator.lease import Lease, Place, cpu_note
from jupyter_torchdist.coordinator.machine import Life
from jupyter_torchdist.coordinator.standstill import disagreement, is_idle, is_locked, stack_lines, stand
from jupyter_torchdist.coordinator.timeline import Timeline
from jupyter_torchdist.errors import ClusterError, TorchdistError
from jupyter_torchdist.records import (
    AgentBatch,
    ErrorCard,
    ErrorRecord,
    Failure,
    NodeInfo,
    NodeRun,
    RankEvent,
    RankLook,
    RankPhase,
    RankSpec,
    RankValue,
    RunRequest,
    RunState,
    RunStatus,
    RunUpdate,
)
from jupyter_torchdist.run_folder import RunFolder

_POLL_SECONDS = 10.0
_LOOPBACK = "127.0.0.1"


class Run:
    """Drives a run from its request to its end, and answers the polls about it."""

    def __init__(self, request: RunRequest, payload: list[Any], agents: Agents) -> None:
        self.request = request
        self._payload = payload
        self._agents = agents
        self._journal = Journal(RunFolder(Path(request.folder)))
        self._life = Life(request.scaling.world_size, grace=request.grace)
        self._events: asyncio.Queue[machine.Event] = asyncio.Queue()
        self._lease = Lease(request.scaling, request.local)
        self._nodes: dict[str, tuple[Agent, list[int]]] = {}
        self._hosts: dict[int, tuple[int, str]] = {}
        self._failures: dict[int, Failure] = {}
        self._settled: set[int] = set()
        self._refusal: Exception | None = None
        self._values: list[RankValue] = []
        self._notes: list[str] = list(request.notes)
        self._detail = "waits for resources"
        self._total: int | None = None
        self._started = time.time()
        self._clock = time.monotonic()
        self._ended: float | None = None
        self._timeline = Timeline(request.scaling.world_size, self._started - (request.began or self._started))
        self._revision = 0
        self._moved = self._clock
        self._hang: ErrorCard | None = None
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._signalled = False
        self.done = asyncio.Event()
        self._write_record()
        self._task(self._drive())
        self._task(self._acquire())
        if request.timeout is not None:
            self._ring(request.timeout, machine.TimedOut())

    # ------------------------------------------------------------ what others ask

    def stop(self, force: bool) -> None:
        """Asks for the end; idempotent after it."""
        self._journal_event("stop asked", force=force)
        self._events.put_nowait(machine.StopAsked(force))

    async def update(self, cursor: int, revision: int) -> RunUpdate:
        """News behind ``cursor`` and ``revision``; waits for some, 10 s at most."""
        deadline = time.monotonic() + _POLL_SECONDS
        while self._journal.size <= cursor and self._revision <= revision and time.monotonic() < deadline:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), deadline - time.monotonic())
            except TimeoutError:
                break
        reports, position = self._journal.rank0_from(cursor)
        over = self.done.is_set()
        return RunUpdate(
            cursor=position,
            revision=self._revision,
            status=self._status(),
            reports=reports,
            output=self._journal.output,
            output_total=self._journal.output_total,
            failures=self._ordered() if over else (),
            refusal=self._refusal if over else None,
            timed_out=self._life.timed_out,
            complete=over and position >= self._journal.size,
        )

    def take_values(self) -> list[RankValue]:
        """The return values, once: they are not kept for ever in the coordinator."""
        values, self._values = self._values, []
        return values

    def close(self) -> None:
        """Closes the files of a run that nobody will ask for again."""
        self._journal.close()

    # ------------------------------------------------------------ the loop

    async def _drive(self) -> None:
        while not self.done.is_set():
            event = await self._events.get()
            before = self._life.state
            self._life, actions = machine.step(self._life, event)
            if self._life.state is not before:
                self._enter(self._life.state)
            for action in actions:
                self._do(action)

    def _enter(self, state: RunState) -> None:
        self._detail = {
            RunState.STARTING: "starts the ranks",
            RunState.STOPPING: "stops the ranks",
            RunState.PUBLISHING: "keeps the files",
        }.get(state, "")
        self._journal_event("state", state=str(state))
        if state in (RunState.RUNNING, RunState.STOPPING):
            self._write_record()
        self._changed()

    def _do(self, action: machine.Action) -> None:
        match action:
            case machine.Launch():
                self._task(self._launch())
            case machine.AskStop():
                for agent, _ in self._nodes.values():
                    agent.call("request_stop", self.request.run_id)
            case machine.Signal(number):
                self._signalled = True
                for agent, ranks in self._nodes.values():
                    agent.call("signal", self.request.run_id, ranks, number)
            case machine.SetTimer(seconds, number):
                self._ring(seconds, machine.TimerRang(number))
            case machine.Publish():
                self._task(self._publish())
            case machine.Finish():
                self._finish()

    # ------------------------------------------------------------ doing

    async def _acquire(self) -> None:
        try:
            places = await self._lease.acquire()
            await self._prepare(places)
        except Exception as exc:
            self._refuse(exc)
        else:
            self._timeline.reached("schedule")
            self._events.put_nowait(machine.Leased())

    async def _prepare(self, places: list[Place]) -> None:
        """One agent a distinct node; nodes are looked at before anything is shipped to them."""
        self._places = places
        found = await asyncio.gather(*(self._agents.get(place.node_id, place.address) for place in places))
        by_node = {agent.info.node_id: agent for agent in found}
        for info in (agent.info for agent in by_node.values()):
            self._notes += check_versions(self.request.versions, info)
        workers = self.request.scaling.num_workers_per_node
        for node_rank, agent in enumerate(found):
            ranks = range(node_rank * workers, (node_rank + 1) * workers)
            self._nodes.setdefault(agent.info.node_id, (agent, []))[1].extend(ranks)
            self._hosts.update(dict.fromkeys(ranks, (node_rank, agent.info.host)))
        if self.request.local and (note := cpu_note(self.request.scaling, ray.nodes())):
            self._notes.append(note)

    async def _launch(self) -> None:
        try:
            await self._start_ranks()
        except Exception as exc:
            self._refuse(exc)
            return
        self._events.put_nowait(machine.Launched())
        self._moved = time.monotonic()
        for agent, ranks in self._nodes.values():
            self._task(self._follow(agent, ranks))
        self._task(self._watch())

    async def _start_ranks(self) -> None:
        request = self.request
        first = self._places[0]
        address = _LOOPBACK if request.local else first.address
        env = dict(request.env)
        agents = [agent for agent, _ in self._nodes.values()]
        master = self._nodes[first.node_id][0]
        opened = await asyncio.gather(
            *(a.ask("open_run", request.run_id, env, address if a is master else "", request.scaling.world_size)
              for a in agents)
        )  # fmt: skip
        self._notes += [note for one in opened for note in one.notes]
        specs = self._specs(address, max(one.store_port for one in opened))
        calls = []
        for agent, ranks in self._nodes.values():
            node_run = NodeRun(request.run_id, request.folder, tuple(specs[r] for r in ranks), env, request.shown)
            calls.append(agent.ask("start", node_run, self._payload))
        await asyncio.gather(*calls)
        self._payload = []

    def _specs(self, address: str, port: int) -> list[RankSpec]:
        request, scaling = self.request, self.request.scaling
        each = scaling.resource_requirements_per_worker
        workers = scaling.num_workers_per_node
        backend = request.backend if request.backend != "auto" else ("nccl" if each.num_gpus else "gloo")
        specs = []
        for rank in range(scaling.world_size):
            place = self._places[rank // workers]
            info = self._nodes[place.node_id][0].info
            specs.append(
                RankSpec(
                    run_id=request.run_id,
                    rank=rank,
                    local_rank=rank % workers,
                    node_rank=rank // workers,
                    world_size=scaling.world_size,
                    local_world_size=workers,
                    node_count=scaling.num_nodes,
                    master_addr=address,
                    master_port=port,
                    backend=backend,
                    init_process_group=request.init_process_group,
                    model_dir=str(self._journal.folder.model_dir),
                    stage_dir=str(self._journal.folder.path),
                    scratch="",
                    cwd=request.cwd,
                    sys_path=request.sys_path,
                    threads=max(1, int(each.num_cpus)),
                    interface="lo" if request.local else info.interface,
                    address=_LOOPBACK if request.local else info.address,
                    rendezvous_timeout=request.rendezvous_timeout,
                    num_gpus=each.num_gpus,
                    gpu_ids=place.gpu_ids,
                )
            )
        return specs

    # ------------------------------------------------------------ whether it goes on

    async def look(self, stacks: bool = True) -> dict[int, RankLook]:
        """The ranks that run, and where they stand."""
        asked = [agent.ask("look", self.request.run_id, stacks) for agent, _ in self._nodes.values()]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return {look.rank: look for answer in answers if isinstance(answer, list) for look in answer}

    async def _watch(self) -> None:
        """Looks at the ranks now and then; shows a standstill, and ends one that can not end by itself."""
        request = self.request
        limits = [limit for limit in (request.straggler_grace, request.stall_after) if limit]
        interval = min(5.0, max(0.1, min(limits) / 6))
        before: dict[int, RankLook] = {}
        locked: tuple[object, float] | None = None
        while not self._life.state.final:
            await asyncio.sleep(interval)
            if self._life.state is not RunState.RUNNING:
                before, locked = {}, None
                continue
            looks = await self.look(stacks=False)
            idle = bool(looks) and all(r in before and is_idle(before[r], look) for r, look in looks.items())
            before = looks
            locked = await self._locked(locked) if idle else None
            if locked is not None and time.monotonic() - locked[1] >= request.straggler_grace:
                self._disagree(locked)
            await self._stalled()

    async def _locked(self, known: tuple[Any, float] | None) -> tuple[Any, float] | None:
        """The stands of a world that can not go on, and since when it has been so; None for one that may."""
        looks = await self.look()
        alive = sorted(self._life.alive)
        stands = {rank: stand(look.frames or ()) for rank, look in looks.items()}
        if sorted(stands) != alive or not is_locked(stands, self._returned()):
            return None
        frames = {rank: look.frames for rank, look in looks.items()}
        return known if known is not None and known[0] == frames else (frames, time.monotonic())

    def _returned(self) -> list[int]:
        return sorted(self._settled - self._life.alive - self._failures.keys())

    def _disagree(self, locked: tuple[Any, float]) -> None:
        frames, since = locked
        stands = {rank: stand(stack or ()) for rank, stack in frames.items()}
        text = disagreement(stands, self._returned(), time.monotonic() - since)
        rank = min(frames)
        node, host = self._hosts[rank]
        error = ErrorRecord("RanksDisagree", text, tuple(frames[rank] or ()))
        self._settled |= frames.keys()  # their end is ours
        self._failures[rank] = Failure(rank, node, host, time.time(), error=error)
        self._journal_event("ranks disagree", text=text)
        self._events.put_nowait(machine.RankFailed(rank))

    async def _stalled(self) -> None:
        limit = self.request.stall_after
        quiet = time.monotonic() - self._moved
        if not limit or quiet < limit or self._hang is not None:
            return
        moved = self._moved
        stacks = {rank: look.frames or () for rank, look in (await self.look()).items()}
        if self._moved == moved and self._life.state is RunState.RUNNING:
            title = f"No report and no output from any rank for {quiet:.0f} s; the run goes on"
            self._hang = ErrorCard(title, tuple(stack_lines(stacks)))
            self._journal_event("stall", seconds=round(quiet, 1), lines=self._hang.lines)
            self._changed()

    async def _follow(self, agent: Agent, ranks: list[int]) -> None:
        """Takes what one agent gathers until its ranks are gone."""
        left = set(ranks)
        while left:
            try:
                batch: AgentBatch = await agent.ask("next_batch", self.request.run_id)
            except RayError as exc:
                self._lost_node(agent, left, exc)
                return
            self._take(batch)
            left -= {e.rank for e in batch.events if e.phase is RankPhase.EXITED}

    def _take(self, batch: AgentBatch) -> None:
        self._journal.add_reports(batch.reports)
        if batch.output:
            self._journal.add_output(batch.output)
        for rank, note in batch.notes:
            if "total" in note and rank == 0:
                self._total = note["total"]
            if "text" in note:
                self._journal_event("text", rank=rank, **note["text"])
        for event in batch.events:
            self._rank_moved(event)
        if batch.moved:
            self._moved, self._hang = time.monotonic(), None
        if batch.reports:
            self._timeline.reached("first step")
        self._changed()

    def _rank_moved(self, event: RankEvent) -> None:
        rank = event.rank
        more = {k: v for k, v in asdict(event).items() if v and k not in ("rank", "phase", "time", "tail", "hint")}
        self._journal_event(f"rank {event.phase}", rank=rank, at=event.time, **more)
        self._timeline.rank_reached(rank, event.phase)
        match event.phase:
            case RankPhase.ENTERED:
                self._events.put_nowait(machine.RankEntered(rank))
            case RankPhase.RETURNED:
                self._settled.add(rank)
                if event.problem:
                    self._notes.append(event.problem)
            case RankPhase.RAISED:
                self._settled.add(rank)
                self._fail(event)
            case RankPhase.EXITED:
                self._exited(event)

    def _exited(self, event: RankEvent) -> None:
        rank = event.rank
        if rank in self._failures:
            # a rank that raised is described by its exception; what it printed last and how it ended is added
            known = self._failures[rank]
            hint = known.hint or ("" if event.signal == "SIGKILL" else event.hint)
            self._failures[rank] = replace(known, tail=event.tail, signal=None, hint=hint)
        elif rank not in self._settled and (event.exitcode != 0 or event.signal):
            self._fail(event)
        self._events.put_nowait(machine.RankExited(rank))

    def _fail(self, event: RankEvent) -> None:
        node, host = self._hosts[event.rank]
        self._failures[event.rank] = Failure(
            rank=event.rank,
            node=node,
            host=host,
            time=event.time,
            error=event.error,
            exitcode=event.exitcode,
            signal=event.signal,
            tail=event.tail,
            hint=event.hint,
            consequence=is_consequence(event.error, event.signal, self._signalled),
        )
        self._events.put_nowait(machine.RankFailed(event.rank))

    def _lost_node(self, agent: Agent, ranks: set[int], exc: RayError) -> None:
        self._agents.forget(agent)
        self._journal_event("node lost", address=agent.info.address, error=str(exc)[:500])
        for rank in sorted(ranks):
            node, host = self._hosts[rank]
            hint = f"its node {host} ({agent.info.address}) was lost: {lost_because(exc)}"
            self._failures.setdefault(rank, Failure(rank, node, host, time.time(), signal="SIGKILL", hint=hint))
            self._events.put_nowait(machine.RankFailed(rank))
            self._events.put_nowait(machine.RankExited(rank))

    async def _publish(self) -> None:
        run_id = self.request.run_id
        for agent, ranks in self._nodes.values():
            try:
                self._values += await agent.ask("values", run_id, ranks)
            except (RayError, KeyError):
                continue
        ends = [agent.ask("end_run", run_id) for agent, _ in self._nodes.values()]
        await asyncio.gather(*ends, return_exceptions=True)
        self._lease.release()
        self._events.put_nowait(machine.Published())

    def _refuse(self, exc: Exception) -> None:
        known = isinstance(exc, TorchdistError)
        self._refusal = exc if known else ClusterError(f"the run could not start: {type(exc).__name__}: {exc}")
        if isinstance(exc, RayActorError):
            self._agents.clear()
        self._journal_event("refused", error=str(self._refusal))
        self._events.put_nowait(machine.Refused())

    def _finish(self) -> None:
        self._ended = time.monotonic()
        self._write_record()
        self.done.set()
        self._changed()
        self._journal_event("end", state=str(self._life.state))
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    # ------------------------------------------------------------ what is shown and written

    def _ordered(self) -> tuple[Failure, ...]:
        wanted = self._life.failed and not self._refusal
        return in_order(list(self._failures.values()), self._returned()) if wanted else ()

    def _error_card(self) -> ErrorCard | None:
        if self._refusal is not None and not self._life.stop:
            return ErrorCard(f"{type(self._refusal).__name__}: {self._refusal}")
        if self._life.timed_out and self._life.state.final and not self._life.failed:
            return ErrorCard(f"RunTimeout: ended after its timeout of {self.request.timeout:g} s")
        return card(self._ordered())

    def _status(self) -> RunStatus:
        request, life = self.request, self._life
        end = self._ended if self._ended is not None else time.monotonic()
        return RunStatus(
            state=life.state,
            detail=self._detail,
            name=request.name,
            nodes=request.scaling.num_nodes,
            workers=request.scaling.num_workers_per_node,
            gpus=request.scaling.resource_requirements_per_worker.num_gpus,
            elapsed=round(end - self._clock, 3),
            step=self._journal.step,
            total=self._total,
            reports=self._journal.reports,
            rate=round(self._journal.rate, 2),
            folder=request.folder,
            notes=tuple(self._notes),
            timeline=dict(self._timeline.seconds),
            error=self._error_card(),
            hang=self._hang if life.state is RunState.RUNNING else None,
        )

    def _write_record(self) -> None:
        request = self.request
        error = self._error_card()
        record: dict[str, Any] = {
            "run_id": request.run_id,
            "name": request.name,
            "state": str(self._life.state),
            "started": self._started,
            "duration": round(self._ended - self._clock, 4) if self._ended is not None else None,
            "world": {
                "nodes": request.scaling.num_nodes,
                "workers_per_node": request.scaling.num_workers_per_node,
                "world_size": request.scaling.world_size,
                "cpus_per_worker": request.scaling.resource_requirements_per_worker.num_cpus,
                "gpus_per_worker": request.scaling.resource_requirements_per_worker.num_gpus,
            },
            "options": {
                "backend": request.backend,
                "init_process_group": request.init_process_group,
                "timeout": request.timeout,
                "grace": request.grace,
                "stall_after": request.stall_after,
                "straggler_grace": request.straggler_grace,
                "rendezvous_timeout": request.rendezvous_timeout,
                "tags": list(request.tags),
                "env": sorted(request.env),
            },
            "entry": request.source.entry,
            "hyper_params": jsonable(request.hyper_params),
            "captured": [asdict(c) for c in request.captured],
            "versions": dict(request.versions),
            "notes": list(self._notes),
            "reports": self._journal.reports,
            "timeline": self._timeline.seconds,
            "error": asdict(error) if error else None,
        }
        # while it runs the newest state is enough; what a run was in the end must outlive the machine
        self._journal.write_run(record, durable=self._life.state.final)

    def _journal_event(self, event: str, **more: Any) -> None:
        if not self.done.is_set() or event == "end":
            self._journal.add_event(event, **more)

    def _changed(self) -> None:
        self._revision += 1
        self._news.set()

    def _ring(self, seconds: float, event: machine.Event) -> None:
        asyncio.get_running_loop().call_later(seconds, self._events.put_nowait, event)

    def _task(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def lost_because(exc: RayError) -> str:
    """Ray's reason in a line; a node that ran out of memory is told as such."""
    text = str(exc)
    if "memory" in text.lower() and "oom" in text.lower():
        return "Ray's memory monitor ended its agent, since the memory of the node ran out"
    return f"{type(exc).__name__}: {next((line.strip() for line in text.splitlines() if line.strip()), '')[:300]}"


def check_versions(driver: Mapping[str, str], node: NodeInfo) -> list[str]:
    """Lines about a node that differs from the driver.

    Raises ``ClusterError`` with both versions when it could not run what the driver pickles.
    """
    mine, theirs = driver.get("python", ""), node.python
    if mine.split(".")[:2] != theirs.split(".")[:2]:
        raise ClusterError(
            f"the notebook runs Python {mine} and node {node.host} ({node.address}) Python {theirs}; "
            "code can not be shipped between them. Use the same minor version on both."
        )
    if not node.torch:
        raise ClusterError(f"node {node.host} ({node.address}) has no torch; install it there.")
    torch = driver.get("torch", node.torch)
    return [] if torch == node.torch else [f"torch is {torch} in the notebook and {node.torch} on node {node.host}"]
