"""Steered steps and convergence: decisions that follow from the lines of a history."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcd.core.ledger import Traffic
from tdcd.records.history import Record
from tdcd.records.outcome import Stopping, verdict
from tdcd.records.steering import IN_A_ROW, LEAST_ROUNDS, MOST_LOST, Steering, StepControl

pytestmark = pytest.mark.quick


def line(round_, loss, **fields):
    return replace(Record(round_, 0, loss, None, {}, Traffic(), Traffic(), 0.0), **fields)


def after(losses, steering=None):
    lines = (line(LEAST_ROUNDS * index, loss) for index, loss in enumerate(losses))
    return (steering or Steering(1e-4)).of(lines)


def test_a_rise_is_taken_back_and_the_steps_become_half_as_long():
    control = after([2.0, 1.0, 1.5])
    assert (control.round, control.loss, control.factor, control.is_back) == (LEAST_ROUNDS, 1.0, 0.5, True)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 2.1])
def test_a_loss_that_doubles_or_is_not_finite_is_taken_back_and_shortens_the_steps_more_every_time(bad):
    def factor(*losses):
        return Steering(1e-4).of(line((LEAST_ROUNDS + 1) * index, loss) for index, loss in enumerate(losses)).factor

    assert [factor(2.0, 1.0, *[bad] * count) for count in range(5)] == [1, 1 / 2, 1 / 8, 1 / 64, 1 / 1024]
    assert factor(2.0, 1.0, bad, bad, 1.5) == 1 / 16
    assert factor(2.0, 1.0, bad, 0.9, bad) == 1 / 4


def test_a_line_that_is_not_finite_counts_at_once_but_not_one_of_a_path_that_was_given_up():
    steering = Steering(1e-4, delay=3)
    control = steering.of([line(0, 2.0), line(1, math.nan)])
    assert (control.counted, control.round, control.factor) == (1, 0, 0.5)
    control, late = steering.judge(control, line(3, math.nan))
    assert (control.counted, late.taken_back, late.diverged) == (1, True, False)
    assert steering.after(control, line(5, math.nan)).factor == 1 / 8


def test_judged_by_held_out_samples_steps_are_halved_only_after_several_lines_above_the_lowest():
    steering = Steering(1e-4, tries=3)

    def held_out(losses):
        # The training loss falls all the time.
        lines = [line(5 * n, 1.0 - n / 1000, test_loss=loss) for n, loss in enumerate(losses)]
        control, judged = StepControl(), []
        for record in lines:
            control, line_after = steering.judge(control, record)
            judged.append((control.factor, control.round, line_after.taken_back))
        return judged

    assert held_out([2.0, 1.0, 1.1, 1.2, 0.9])[2:] == [(1, 5, False), (1, 5, False), (1, 20, False)]
    assert held_out([2.0, 1.0, 1.1, 1.2, 1.05, 1.1])[3:] == [(1, 5, False), (0.5, 5, True), (0.5, 5, False)]
    assert held_out([2.0, 1.0, 2.1])[2] == (0.5, 5, True)
    assert [factor for factor, *_ in held_out([1.0, 0.9, 0.8, 0.7, 0.6, 0.5])] == [1] * 6


def test_a_run_that_stops_early_and_keeps_its_best_model_is_judged_by_held_out_samples():
    def tries(**evaluate):
        return Stopping.of({"train": {"step_size": "auto"}, "evaluate": evaluate}).steering.tries

    assert tries(patience=24, keep="best") == 8
    assert tries(patience=1, keep="best") == 1
    assert tries(patience=24, keep="last") == tries(keep="best") == 0


def test_a_run_has_diverged_when_no_shorter_step_is_finite():
    steering, lines = Steering(1e-4), [2.0, *[math.nan] * MOST_LOST]
    assert not steering.has_failed(after(lines[:-1]))
    assert steering.has_failed(after(lines))
    control, last = steering.judge(after(lines[:-1]), line(LEAST_ROUNDS * MOST_LOST, math.nan))
    assert last.diverged
    assert steering.failure(control) == ", and steps 3.52e+13 times shorter did not help"


@pytest.mark.parametrize(("losses", "is_over"), [((2.0, math.nan), True), ((2.0, 1.0, math.nan), False)])
def test_a_last_line_that_is_not_finite_ends_a_run_as_diverged_if_no_line_was_better_than_the_first(losses, is_over):
    rounds = LEAST_ROUNDS * (len(losses) - 1)
    stopping, history, control = Stopping(rounds, steering=Steering(1e-4, rounds=rounds)), [], StepControl()
    for index, loss in enumerate(losses):
        control, judged = stopping.steering.judge(control, line(LEAST_ROUNDS * index, loss))
        history.append(judged)
    assert history[-1].diverged is is_over
    assert bool(verdict(history, stopping)) is is_over
    assert stopping.kept(history).round == rounds - LEAST_ROUNDS


def test_a_run_whose_loss_never_fell_says_so():
    stopping, history, control = Stopping(6, steering=Steering(1e-4, rounds=6)), [], StepControl()
    for round_, loss in ((0, 2.0), (3, 9.0), (6, 9.0)):
        control, judged = stopping.steering.judge(control, line(round_, loss))
        history.append(judged)
    assert verdict(history, stopping) == "no step lowered the training loss, and steps 2 times shorter did not help"


def test_steps_grow_by_half_after_three_falls_in_a_row():
    assert [after([10.0 / 2**n for n in range(count)]).factor for count in (3, 4, 7)] == [1.0, 1.5, 2.25]


def test_a_line_of_a_path_that_was_given_up_does_not_count():
    steering = Steering(1e-4, delay=1)
    taken_back = after([2.0, 3.0], steering)
    # The decision of round 3 takes effect in round 4: three rounds later something can be judged again.
    assert steering.after(taken_back, line(6, 9.0)) == taken_back
    assert steering.after(taken_back, line(7, 1.0)).round == 7


def test_lines_that_follow_each_other_closely_count_now_and_then():
    control = Steering(1e-4).of(line(round_, 10.0 - round_) for round_ in range(8))
    assert control.counted == 6


def test_a_line_without_some_clients_samples_does_not_count():
    control = after([2.0, 1.0])
    assert Steering(1e-4).after(control, line(10, 5.0, unscored=["a"])) == control


def test_a_slow_silo_is_judged_where_all_blocks_are_of_one_round():
    steering = Steering(1e-4, period=4)
    control = steering.after(StepControl(), line(0, 2.0))
    assert steering.after(control, line(10, 5.0)) == control
    assert steering.after(control, line(12, 5.0)).is_back


def test_a_run_has_converged_when_its_loss_is_flat_three_times_in_a_row():
    flat = [1.0 - 1e-6 * n for n in range(IN_A_ROW + 1)]
    steering = Steering(1e-4)
    assert not steering.has_converged(after([2.0, *flat[:-1]]))
    assert steering.has_converged(after([2.0, *flat]))
    assert not Steering(0.0).has_converged(after([2.0, *flat], Steering(0.0)))
    assert "converged after round 12" in steering.in_words(after([2.0, *flat]), 12)


def proven(losses, gaps, rounds=0, **fields):
    lines = [line(LEAST_ROUNDS * n, loss) for n, loss in enumerate(losses)]
    lines = [replace(one, gap=gaps.get(one.round)) for one in lines]
    return Steering(1e-4, rounds=rounds, **fields).of(lines)


FLAT = [2.0, *(1.0 - 1e-6 * n for n in range(20))]


def test_a_flat_loss_with_a_large_gap_has_not_converged():
    assert converged(4, {12: 0.00099})
    assert not converged(4, {12: 0.00101})
    assert not converged(4, {12: 0.5})
    # The second one need not be as close.
    assert converged(6, {12: 0.0099, 18: 0.0099})
    assert not converged(6, {12: 0.0101, 18: 0.0101})
    # Without a certificate, now and before, flat is all that is known.
    assert converged(4, {})


def converged(lines, gaps, **fields):
    control = proven(FLAT[: lines + 1], gaps, **fields)
    return Steering(1e-4, **{"rounds": 0, **fields}).has_converged(control)


def test_the_next_line_that_may_end_such_a_run_is_after_half_as_many_rounds_again():
    assert [n for n in range(5, 9) if converged(n, {12: 0.5})] == []
    assert converged(6, {12: 0.5, 18: 0.001})
    assert not converged(6, {12: 0.5, 18: 0.02})
    assert converged(9, {12: 0.5, 18: 0.02, 27: 0.001})
    # Whoever did not answer: what was said of an earlier line still holds.
    assert not converged(6, {12: 0.5, 18: None})


def test_the_last_line_may_have_converged_however_soon_it_comes():
    assert converged(5, {12: 0.5, 15: 0.001}, rounds=15)
    assert not converged(5, {12: 0.5, 15: 0.02}, rounds=15)
    assert not converged(4, {12: 0.5}, rounds=12)


def test_a_larger_tol_asks_for_less_of_a_proof():
    steering = Steering(1e-3)
    lines = [replace(line(LEAST_ROUNDS * n, loss), gap=0.009 if n == 4 else None) for n, loss in enumerate(FLAT[:5])]
    assert steering.has_converged(steering.of(lines))
    assert not Steering(1e-4).has_converged(Steering(1e-4).of(lines))


def test_a_run_that_is_judged_by_held_out_samples_needs_no_proof_of_its_training_loss():
    assert converged(4, {12: 0.5}, tries=8)


def test_a_flat_run_at_its_limit_says_how_far_it_may_be_from_the_best():
    steering = Steering(1e-4, rounds=15)
    words = steering.in_words(proven(FLAT[:6], {12: 0.5, 15: 0.4912}, rounds=15), 15)
    assert words == (
        "limit of 15 rounds reached, the training loss changes by less than 0.01 % in 10 rounds, but is not proven to "
        "be near the best possible one: at most 0.5 above it"
    )


def test_lines_that_were_ready_are_those_whose_certificates_were_asked_for():
    lines = [line(LEAST_ROUNDS * n, loss) for n, loss in enumerate(FLAT[:7])]
    lines = [replace(one, gap={12: 0.5, 18: 0.001}.get(one.round)) for one in lines]
    assert Stopping(100, steering=Steering(1e-4, rounds=100)).ready(lines) == [12, 18]


def test_a_run_that_still_falls_says_how_fast():
    words = Steering(1e-4).in_words(after([2.0, 1.5, 1.2]), 6)
    assert words == "limit of 6 rounds reached, the training loss still falls by 67 % in 10 rounds"


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=40), st.integers(1, 7), st.integers(1, 4))
def test_the_steps_never_continue_from_a_loss_above_that_before_training(losses, every, delay):
    steering, control = Steering(1e-4, delay), StepControl()
    for index, loss in enumerate(losses):
        before = control
        control = steering.after(control, line(every * index, loss))
        assert control.loss <= losses[0] * (1 + 1e-5)
        assert control.round <= control.counted or not control.counted
        assert control.factor <= max(8.0, before.factor)


def test_the_model_that_stays_is_the_one_before_the_loss_rose():
    stopping = Stopping(10, steering=Steering(1e-4))
    history, control = [], StepControl()
    for round_, loss in ((0, 2.0), (5, 1.0), (10, 1.5)):
        control, judged = stopping.steering.judge(control, line(round_, loss))
        history.append(judged)
    assert [record.taken_back for record in history] == [False, False, True]
    assert stopping.kept(history).round == 5
