"""The life of a run, stepped without processes."""

import signal

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jupyter_torchdist.coordinator import machine
from jupyter_torchdist.coordinator.machine import Life, step
from jupyter_torchdist.records import RunState

events = st.one_of(
    st.sampled_from([machine.Leased(), machine.Refused(), machine.Launched(), machine.TimedOut(), machine.Published()]),
    st.builds(machine.RankEntered, st.integers(0, 3)),
    st.builds(machine.RankFailed, st.integers(0, 3)),
    st.builds(machine.RankExited, st.integers(0, 3)),
    st.builds(machine.StopAsked, st.booleans()),
    st.builds(machine.TimerRang, st.sampled_from([signal.SIGTERM, signal.SIGKILL])),
)


@given(st.lists(events, max_size=40))
def test_every_event_leads_somewhere_and_nothing_follows_the_end(sequence):
    life, published, finished = Life(4), 0, 0
    for event in sequence:
        was_final = life.state.final
        life, actions = step(life, event)
        published += sum(isinstance(a, machine.Publish) for a in actions)
        finished += sum(isinstance(a, machine.Finish) for a in actions)
        assert not (was_final and actions)
        assert (life.state is RunState.PUBLISHING or life.state.final) == (published > 0)
    assert published <= 1 and finished <= 1
    assert finished == life.state.final


class World(RuleBasedStateMachine):
    """A world that answers as the real one does: what is launched exits, what is published is told."""

    def __init__(self):
        super().__init__()
        self.life = Life(3)
        self.leased = self.launching = self.publishing = False
        self.running: set[int] = set()
        self.killed = False

    def feed(self, event):
        self.life, actions = step(self.life, event)
        for action in actions:
            if isinstance(action, machine.Launch):
                self.launching = True
            if isinstance(action, machine.Publish):
                self.publishing = True
            if isinstance(action, machine.Signal) and action.number == signal.SIGKILL:
                self.killed = True

    @precondition(lambda self: not self.leased)
    @rule()
    def lease(self):
        self.leased = True
        self.feed(machine.Leased())

    @precondition(lambda self: self.launching)
    @rule(works=st.booleans())
    def launch(self, works):
        self.launching = False
        if works:
            self.running = {0, 1, 2}
            self.feed(machine.Launched())
        else:
            self.feed(machine.Refused())

    @precondition(lambda self: self.running)
    @rule(data=st.data(), fails=st.booleans())
    def leave(self, data, fails):
        rank = data.draw(st.sampled_from(sorted(self.running)))
        if fails:
            self.feed(machine.RankFailed(rank))
        self.running.discard(rank)
        self.feed(machine.RankExited(rank))

    @rule(force=st.booleans())
    def stop(self, force):
        self.feed(machine.StopAsked(force))

    @rule()
    def time_is_over(self):
        self.feed(machine.TimedOut())

    @precondition(lambda self: self.publishing)
    @rule()
    def publish(self):
        self.publishing = False
        self.feed(machine.Published())

    @invariant()
    def nothing_runs_after_the_end(self):
        if self.life.state.final:
            assert not self.running and not self.publishing

    def teardown(self):
        # whatever happened, the world can always be brought to an end
        if self.launching:
            self.launch(True)
        if not self.leased and not self.life.state.final and not self.publishing:
            self.feed(machine.StopAsked(True))
        for rank in sorted(self.running):
            self.running.discard(rank)
            self.feed(machine.RankExited(rank))
        if self.launching:
            self.launch(False)
        if self.publishing:
            self.publish()
        assert self.life.state.final


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=60, deadline=None)


def run(*sequence, life=None):
    life = life or Life(2)
    actions = ()
    for event in sequence:
        life, actions = step(life, event)
    return life, actions


START = (machine.Leased(), machine.Launched(), machine.RankEntered(0), machine.RankEntered(1))
END = (machine.RankExited(0), machine.RankExited(1), machine.Published())


def test_a_run_that_nothing_happens_to_finishes():
    assert run(*START, *END)[0].state is RunState.FINISHED


def test_a_failed_rank_ends_the_others_with_sigterm_then_sigkill():
    life, actions = run(*START, machine.RankFailed(1))
    assert life.state is RunState.STOPPING
    assert machine.SetTimer(machine.FAILURE_PAUSE, signal.SIGTERM) in actions
    _, actions = step(life, machine.TimerRang(signal.SIGTERM))
    assert actions == (machine.Signal(signal.SIGTERM), machine.SetTimer(machine.TERM_GRACE, signal.SIGKILL))
    _, actions = step(life, machine.TimerRang(signal.SIGKILL))
    assert actions == (machine.Signal(signal.SIGKILL),)
    assert run(*START, machine.RankFailed(1), *END)[0].state is RunState.FAILED


def test_the_first_stop_interrupts_and_the_second_kills():
    life, actions = run(*START, machine.StopAsked())
    assert machine.Signal(signal.SIGINT) in actions
    _, actions = step(life, machine.StopAsked())
    assert machine.Signal(signal.SIGKILL) in actions
    assert run(*START, machine.StopAsked(), *END)[0].state is RunState.STOPPED


def test_a_rank_that_fails_while_it_is_stopped_does_not_make_the_run_failed():
    life, _ = run(*START, machine.StopAsked(), machine.RankFailed(0), *END)
    assert life.state is RunState.STOPPED


def test_a_stop_while_waiting_gives_the_resources_back():
    life, actions = run(machine.StopAsked())
    assert life.state is RunState.PUBLISHING and actions == (machine.Publish(),)


def test_a_stop_while_the_ranks_are_started_kills_them_when_they_are_there():
    life, _ = run(machine.Leased(), machine.StopAsked())
    life, actions = step(life, machine.Launched())
    assert actions == (machine.Signal(signal.SIGKILL),)
