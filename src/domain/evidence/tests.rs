use proptest::prelude::*;

use super::*;

fn attempt(outcome: Option<Outcome>) -> Attempt {
    Attempt {
        outcome,
        begun_at: Some(0.0),
        dedup_scope: "p".to_owned(),
        dedup_seconds: None,
        superseded: false,
        sent_again: false,
        proofs: Proofs::default(),
    }
}

fn in_state(state: State, attempts: Vec<Attempt>) -> Known {
    Known { state, attempts }
}

/// Applies one piece of evidence as the store does: what is flagged stays flagged.
fn apply(known: &mut Known, flags: &mut (bool, bool), number: usize, proof: Proof, for_good: bool) {
    known.attempts[number].proofs.add(proof, for_good);
    let consequence = weigh(known);
    if let Some(next) = consequence.next {
        assert!(known.state.may_become(next), "{known:?} may not become {next}");
        known.state = next;
    }
    flags.0 |= consequence.duplicate_possible;
    flags.1 |= consequence.contradiction;
}

fn any_outcome() -> impl Strategy<Value = Option<Outcome>> {
    prop_oneof![
        Just(Some(Outcome::NotSent)),
        Just(Some(Outcome::Deferred)),
        Just(Some(Outcome::Refused)),
        Just(Some(Outcome::Uncertain)),
        Just(Some(Outcome::Uncertain)),
        Just(Some(Outcome::Sent)),
    ]
}

fn any_attempt() -> impl Strategy<Value = Attempt> {
    (any_outcome(), 0..100u32, "[pq]", proptest::option::of(0..100u32), any::<bool>()).prop_map(
        |(outcome, begun, dedup_scope, window, superseded)| Attempt {
            outcome,
            begun_at: Some(begun.into()),
            dedup_scope,
            dedup_seconds: window.map(Into::into),
            superseded,
            sent_again: false,
            proofs: Proofs::default(),
        },
    )
}

/// A record that a worker can leave behind, before any evidence.
fn any_record() -> impl Strategy<Value = Known> {
    (proptest::collection::vec(any_attempt(), 1..4), 0..4u8).prop_map(|(mut attempts, choice)| {
        let doubt = attempts.iter().any(|attempt| attempt.outcome == Some(Outcome::Uncertain));
        let sent = attempts.iter().any(|attempt| attempt.outcome == Some(Outcome::Sent));
        let state = match (sent, doubt, choice) {
            (_, _, 0) => {
                // A worker is at it: the last attempt has no outcome yet, and none before it was accepted.
                attempts.retain(|attempt| attempt.outcome != Some(Outcome::Sent));
                attempts.push(attempt(None));
                State::Transmitting
            }
            (true, _, _) => State::Sent,
            (false, true, 1) => State::Uncertain,
            (false, true, 2) => State::Unresolved,
            (false, false, 1) => State::Failed,
            (false, _, 2) => State::Cancelled,
            (false, _, _) => State::Pending,
        };
        Known { state, attempts }
    })
}

fn any_evidence() -> impl Strategy<Value = Vec<(usize, Proof, bool)>> {
    proptest::collection::vec((0..4usize, proptest::sample::select(Proof::ALL.to_vec()), any::<bool>()), 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn any_order_and_repetition_of_evidence_gives_the_same_end(
        record in any_record(),
        evidence in any_evidence(),
        order in proptest::collection::vec(any::<proptest::sample::Index>(), 0..24),
    ) {
        let count = record.attempts.len();
        let run = |evidence: &[(usize, Proof, bool)]| {
            let (mut known, mut flags) = (record.clone(), (false, false));
            for &(number, proof, for_good) in evidence {
                apply(&mut known, &mut flags, number % count, proof, for_good);
            }
            (known.state, flags, weigh(&known).doubt_left)
        };
        // Any of them, as often as they come, and then whatever is missing, backwards.
        let mut shuffled: Vec<_> = if evidence.is_empty() { vec![] } else { order.iter().map(|at| *at.get(&evidence)).collect() };
        shuffled.extend(evidence.iter().rev());
        prop_assert_eq!(run(&evidence), run(&shuffled));
    }

    #[test]
    fn after_a_proof_of_acceptance_nothing_is_sent_by_itself(record in any_record(), evidence in any_evidence()) {
        let count = record.attempts.len();
        let (mut known, mut flags) = (record, (false, false));
        for (number, proof, for_good) in evidence {
            apply(&mut known, &mut flags, number % count, proof, for_good);
        }
        if known.attempts.iter().any(Attempt::accepted) {
            prop_assert!(!matches!(known.state, State::Pending | State::Claimed | State::Uncertain | State::Unresolved), "{:?}", known);
        }
    }
}

fn outcome_of(state: State, own: Outcome, evidence: &[(Proof, bool)]) -> (State, bool) {
    let (mut known, mut flags) = (in_state(state, vec![attempt(Some(own))]), (false, false));
    for &(proof, for_good) in evidence {
        apply(&mut known, &mut flags, 0, proof, for_good);
    }
    (known.state, flags.1)
}

#[test]
fn each_proof_alone_leads_where_the_table_says() {
    use Proof::{Accepted, Bounced, Delivered, Inconclusive, NotAccepted};
    for doubt in [State::Uncertain, State::Unresolved] {
        for (proof, for_good, expected) in [
            (Accepted, false, State::Sent),
            (Delivered, false, State::Sent),
            (Bounced, false, State::Bounced),
            (NotAccepted, false, State::Pending),
            (NotAccepted, true, State::Failed),
            (Inconclusive, false, doubt),
        ] {
            assert_eq!(outcome_of(doubt, Outcome::Uncertain, &[(proof, for_good)]), (expected, false), "{proof:?}");
        }
    }
    assert_eq!(outcome_of(State::Sent, Outcome::Sent, &[(Bounced, false)]), (State::Bounced, false));
    assert_eq!(outcome_of(State::Sent, Outcome::Sent, &[(Delivered, false)]), (State::Sent, false));
    assert_eq!(outcome_of(State::Sent, Outcome::Sent, &[(NotAccepted, false)]), (State::Sent, true), "disputed");
    assert_eq!(outcome_of(State::Failed, Outcome::Refused, &[(Accepted, false)]), (State::Failed, true), "disputed");
    assert_eq!(outcome_of(State::Cancelled, Outcome::Uncertain, &[(Accepted, false)]), (State::Cancelled, true));
    assert_eq!(
        outcome_of(State::Pending, Outcome::Deferred, &[(Accepted, false)]),
        (State::Sent, true),
        "not sent again"
    );
}

#[test]
fn a_contradiction_is_flagged_and_the_acceptance_holds() {
    use Proof::{Accepted, Bounced, Delivered, NotAccepted};
    for (one, other, end) in [
        (Accepted, NotAccepted, State::Sent),
        (Bounced, NotAccepted, State::Bounced),
        (Delivered, Bounced, State::Bounced),
    ] {
        for evidence in [[(one, true), (other, true)], [(other, true), (one, true)]] {
            assert_eq!(outcome_of(State::Uncertain, Outcome::Uncertain, &evidence), (end, true), "{evidence:?}");
        }
    }
}

#[test]
fn not_accepted_settles_nothing_while_another_attempt_is_in_doubt() {
    let two = || vec![attempt(Some(Outcome::Uncertain)), attempt(Some(Outcome::Uncertain))];
    let (mut known, mut flags) = (in_state(State::Uncertain, two()), (false, false));
    apply(&mut known, &mut flags, 0, Proof::NotAccepted, false);
    assert_eq!((known.state, weigh(&known).doubt_left), (State::Uncertain, true));
    apply(&mut known, &mut flags, 1, Proof::NotAccepted, false);
    assert_eq!((known.state, weigh(&known).doubt_left), (State::Pending, false));
}

#[test]
fn two_acceptances_are_a_duplicate_unless_the_provider_takes_them_for_one() {
    let begun = |at: f64, window: Option<f64>| Attempt {
        begun_at: Some(at),
        dedup_seconds: window,
        ..attempt(Some(Outcome::Uncertain))
    };
    for (first, second, twice) in [
        (begun(0.0, None), begun(10.0, None), true),
        (begun(0.0, Some(60.0)), begun(10.0, Some(60.0)), false),
        (begun(0.0, Some(60.0)), begun(61.0, Some(60.0)), true),
        (begun(0.0, Some(60.0)), begun(10.0, Some(5.0)), true),
        (begun(0.0, Some(60.0)), Attempt { dedup_scope: "q".to_owned(), ..begun(10.0, Some(60.0)) }, true),
    ] {
        let (mut known, mut flags) = (in_state(State::Uncertain, vec![first, second]), (false, false));
        apply(&mut known, &mut flags, 0, Proof::Accepted, false);
        assert_eq!((known.state, flags.0), (State::Sent, false));
        apply(&mut known, &mut flags, 1, Proof::Accepted, false);
        assert_eq!((known.state, flags.0), (State::Sent, twice));
    }
}

#[test]
fn what_is_transmitted_is_its_workers_and_an_earlier_acceptance_says_that_two_are_out() {
    let (mut known, mut flags) =
        (in_state(State::Transmitting, vec![attempt(Some(Outcome::Uncertain)), attempt(None)]), (false, false));
    apply(&mut known, &mut flags, 0, Proof::Accepted, false);
    assert_eq!((known.state, flags.0), (State::Transmitting, true));
}

#[test]
fn what_a_person_sends_again_on_purpose_is_not_stopped_by_what_was_known_before() {
    let first = Attempt { sent_again: true, superseded: true, ..attempt(Some(Outcome::Sent)) };
    for proof in [Proof::Delivered, Proof::Accepted, Proof::Bounced] {
        let (mut known, mut flags) = (in_state(State::Pending, vec![first.clone()]), (false, false));
        apply(&mut known, &mut flags, 0, proof, false);
        assert_eq!(known.state, State::Pending, "{proof:?}");
        known.attempts.push(attempt(Some(Outcome::Sent)));
        known.state = State::Sent;
        apply(&mut known, &mut flags, 0, proof, false);
        assert_eq!(known.state, State::Sent, "{proof:?}");
        apply(&mut known, &mut flags, 1, Proof::Bounced, false);
        assert_eq!(known.state, State::Bounced);
    }
}

#[test]
fn an_old_refusal_does_not_fail_what_a_person_started_anew() {
    let (mut known, mut flags) = (in_state(State::Pending, vec![attempt(Some(Outcome::Uncertain))]), (false, false));
    known.attempts[0].superseded = true;
    apply(&mut known, &mut flags, 0, Proof::NotAccepted, true);
    assert_eq!(known.state, State::Pending);
}
