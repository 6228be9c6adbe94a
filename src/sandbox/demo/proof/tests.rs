use super::super::shop::Ledger;
use super::super::truth::{Row, Taken};
use super::*;

fn id(number: u32) -> String {
    uuid::Uuid::from_u128(number.into()).to_string()
}

fn row(message: &str, state: State) -> Row {
    Row {
        message: message.to_owned(),
        route: "default".to_owned(),
        state: Some(state),
        reason: None,
        duplicate_possible: false,
        begun: true,
        doubt: None,
    }
}

/// One message of four notifications: sent, sent after a lost answer, in doubt and accepted, failed; and one rolled back.
fn facts() -> Facts {
    let ids = (1..=4).map(|number| id(number).parse().unwrap()).collect();
    let states = [State::Sent, State::Sent, State::Uncertain, State::Failed];
    let rows = (1..=4).zip(states).map(|(number, state)| (id(number), row("m-1", state)));
    Facts {
        ledger: Ledger {
            committed: [("m-1".to_owned(), ids)].into(),
            absent: ["m-2".to_owned()].into(),
            ..Ledger::default()
        },
        messages: [("m-1".to_owned(), 4)].into(),
        rows: rows.collect(),
        taken: vec![Taken {
            provider: "dedup".to_owned(),
            route: "default".to_owned(),
            deliveries: [(id(1), 1), (id(2), 1), (id(3), 1)].into(),
            answer_lost: [id(2), id(3)].into(),
            ..Taken::default()
        }],
        ..Facts::default()
    }
}

/// The names of the equations that fail once the facts are changed in this way.
fn failing(change: impl Fn(&mut Facts)) -> Vec<&'static str> {
    let mut facts = facts();
    change(&mut facts);
    prove(&facts).into_iter().filter(|one| !one.holds()).map(|one| one.name).collect()
}

#[test]
fn true_facts_prove_everything() {
    assert_eq!(failing(|_| ()), [""; 0]);
}

#[test]
fn every_equation_can_fail() {
    type Change = fn(&mut Facts);
    let state = |facts: &mut Facts, number, state| facts.rows.get_mut(&id(number)).unwrap().state = state;
    let lies: &[(&str, Change)] = &[
        ("messages", |facts| {
            let _ = facts.ledger.committed.insert("m-3".to_owned(), Vec::new());
        }),
        ("rolled back", |facts| {
            let _ = facts.messages.insert("m-2".to_owned(), 0);
        }),
        ("intents", |facts| {
            let _ = facts.messages.insert("m-1".to_owned(), 5);
        }),
        ("intents", |facts| facts.rows.get_mut(&id(4)).unwrap().message = "m-9".to_owned()),
        ("ids", |facts| {
            let _ = facts.rows.remove(&id(4));
        }),
        ("accepted", |facts| {
            let _ = facts.taken[0].deliveries.insert(id(9), 1);
        }),
        ("accepted", |facts| facts.taken[0].route = "bulk".to_owned()),
        ("sent", |facts| {
            let _ = facts.taken[0].deliveries.insert(id(1), 2);
        }),
        ("lost", |facts| {
            let _ = facts.taken[0].deliveries.remove(&id(1));
        }),
        ("duplicates", |facts| {
            let _ = facts.taken[0].deliveries.insert(id(3), 2);
        }),
        ("failed", |facts| {
            let _ = facts.taken[0].deliveries.insert(id(4), 1);
        }),
        ("truth", |facts| {
            let _ = facts.taken[0].deliveries.insert(id(4), 1);
        }),
        ("begun", |facts| facts.rows.get_mut(&id(1)).unwrap().begun = false),
        ("leases", |facts| {
            let _ = facts.begun_without_lease.insert(id(1));
        }),
        ("bytes", |facts| {
            let _ = facts.taken[0].altered.insert(id(1));
        }),
        ("alarms", |facts| facts.rows.get_mut(&id(1)).unwrap().duplicate_possible = true),
        ("protocol", |facts| facts.taken[0].violations.push("x".to_owned())),
    ];
    for (name, lie) in lies {
        assert!(failing(lie).contains(name), "{name}: {:?}", failing(lie));
    }
    assert!(failing(|facts| state(facts, 1, None)).contains(&"states"));
    assert!(failing(|facts| state(facts, 2, Some(State::Failed))).contains(&"answers lost"));
    for stuck in [State::Pending, State::Claimed, State::Transmitting] {
        assert!(failing(|facts| state(facts, 1, Some(stuck))).contains(&"stuck"));
    }
    let named: BTreeSet<_> = lies.iter().map(|(name, _)| *name).chain(["states", "stuck", "answers lost"]).collect();
    assert_eq!(named, prove(&facts()).iter().map(|one| one.name).collect());
}
