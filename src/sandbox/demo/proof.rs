//! What the facts must prove, equation by equation: pure, so that each can be shown to fail.

use std::collections::BTreeSet;

use super::screen::grouped;
use super::truth::Facts;
use crate::domain::state::State;

/// One equation.
#[derive(Debug, Clone)]
pub(super) struct Equation {
    /// What it is about, in a word.
    pub(super) name: &'static str,
    /// What it says, with its numbers.
    pub(super) says: String,
    /// The ids, or keys, for which it does not hold.
    pub(super) offenders: BTreeSet<String>,
}

impl Equation {
    fn new(name: &'static str, says: String, offenders: BTreeSet<String>) -> Self {
        Self { name, says, offenders }
    }

    /// Whether it holds.
    pub(super) fn holds(&self) -> bool {
        self.offenders.is_empty()
    }
}

/// Every equation.
pub(super) fn prove(facts: &Facts) -> Vec<Equation> {
    let mut all = intents(facts);
    all.extend(states(facts));
    all.extend(deliveries(facts));
    all.extend(doubts(facts));
    all.extend(conduct(facts));
    all
}

/// G2: a notification exists if and only if its message committed.
fn intents(facts: &Facts) -> Vec<Equation> {
    let told: BTreeSet<String> = facts.ledger.committed.keys().cloned().collect();
    let stored: BTreeSet<String> = facts.messages.keys().cloned().collect();
    let promised: usize = facts.messages.values().sum();
    let count = |key: &str| facts.rows.values().filter(|row| row.message == key).count();
    let ghosts = facts.ids(|row| !stored.contains(&row.message));
    let miscounted = facts.messages.iter().filter(|(key, promised)| count(key) != **promised);
    let miscounted: BTreeSet<String> = miscounted.map(|(key, _)| key.clone()).chain(ghosts).collect();
    let ids: BTreeSet<String> = facts.ledger.committed.values().flatten().map(ToString::to_string).collect();
    let returned: BTreeSet<String> = facts
        .ledger
        .absent
        .iter()
        .filter(|key| stored.contains(*key) || facts.rows.values().any(|row| row.message == **key))
        .cloned()
        .collect();
    vec![
        Equation::new(
            "messages",
            format!("{} acknowledged to the shop = {} in its table", grouped(told.len()), grouped(stored.len())),
            &told ^ &stored,
        ),
        Equation::new(
            "rolled back",
            format!(
                "{} rolled back or crashed before the commit: {} of them have a message or a notification",
                grouped(facts.ledger.absent.len()),
                grouped(returned.len())
            ),
            returned,
        ),
        Equation::new(
            "intents",
            format!(
                "{} notifications promised by messages = {} in the outbox, each with its message",
                grouped(promised),
                grouped(facts.rows.len())
            ),
            miscounted,
        ),
        Equation::new(
            "ids",
            format!("{} ids returned to the shop = {} in the outbox", grouped(ids.len()), grouped(facts.rows.len())),
            &ids ^ &facts.ids(|_| true),
        ),
    ]
}

/// G4: every notification is in one state, and none is stuck.
fn states(facts: &Facts) -> Vec<Equation> {
    let counts: Vec<String> = State::ALL
        .into_iter()
        .map(|state| (state, facts.in_state(state).len()))
        .filter(|(_, count)| *count > 0)
        .map(|(state, count)| format!("{} {state}", grouped(count)))
        .collect();
    let stuck = facts.ids(|row| matches!(row.state, Some(State::Pending | State::Claimed | State::Transmitting)));
    vec![
        Equation::new(
            "states",
            format!("{} notifications = {}", grouped(facts.rows.len()), counts.join(" + ")),
            facts.ids(|row| row.state.is_none()),
        ),
        Equation::new("stuck", format!("rows pending, claimed or transmitting: {}", grouped(stuck.len())), stuck),
    ]
}

/// G3: what is said to be sent was delivered once, and what is said to have failed never.
fn deliveries(facts: &Facts) -> Vec<Equation> {
    let (sent, failed, accepted) = (facts.in_state(State::Sent), facts.in_state(State::Failed), facts.accepted());
    let once = sent.iter().filter(|id| facts.deliveries(id) == 1).count();
    let unknown: BTreeSet<String> = facts
        .taken
        .iter()
        .flat_map(|taken| {
            let known = |id: &str| facts.rows.get(id).is_some_and(|row| row.route == taken.route);
            taken.deliveries.keys().filter(move |id| !known(id)).cloned()
        })
        .collect();
    let twice: BTreeSet<String> = accepted.iter().filter(|id| facts.deliveries(id) > 1).cloned().collect();
    let lost: BTreeSet<String> = &sent - &accepted;
    let hidden: BTreeSet<String> = &failed & &accepted;
    let deduplicated: u64 = facts.taken.iter().map(|taken| taken.deduplicated).sum();
    let by_server: Vec<String> =
        facts.taken.iter().map(|taken| format!("{} by {}", grouped(taken.deliveries.len()), taken.provider)).collect();
    vec![
        Equation::new(
            "accepted",
            format!(
                "{} ids accepted ({}), of them not in the database under that route: {}",
                grouped(accepted.len()),
                by_server.join(", "),
                grouped(unknown.len())
            ),
            unknown,
        ),
        Equation::new(
            "sent",
            format!("{} sent = {} delivered exactly once", grouped(sent.len()), grouped(once)),
            sent.iter().filter(|id| facts.deliveries(id) != 1).cloned().collect(),
        ),
        Equation::new("lost", format!("sent, and accepted by no server: {}", grouped(lost.len())), lost),
        Equation::new(
            "duplicates",
            format!(
                "ids delivered twice: {} ({deduplicated} repeats were deduplicated by dedup)",
                grouped(twice.len())
            ),
            twice,
        ),
        Equation::new(
            "failed",
            format!("{} failed, of them accepted by a server: {}", grouped(failed.len()), grouped(hidden.len())),
            hidden,
        ),
    ]
}

/// Nothing that was accepted goes unmentioned.
fn doubts(facts: &Facts) -> Vec<Equation> {
    let (sent, flagged) = (facts.in_state(State::Sent), facts.ids(super::truth::Row::flagged));
    let accepted = facts.accepted();
    let lost: BTreeSet<String> = facts.taken.iter().flat_map(|taken| taken.answer_lost.iter().cloned()).collect();
    let unmentioned: BTreeSet<String> = &(&lost - &sent) - &flagged;
    let equation = |name, what: &str, ids: &BTreeSet<String>, offenders: BTreeSet<String>| {
        let says = format!(
            "{} {what} = {} sent + {} flagged, {} unflagged",
            grouped(ids.len()),
            grouped((ids & &sent).len()),
            grouped((ids & &flagged).len()),
            grouped(offenders.len())
        );
        Equation::new(name, says, offenders)
    };
    vec![
        equation("answers lost", "accepted with the answer lost", &lost, unmentioned),
        equation("truth", "accepted at all", &accepted, &(&accepted - &sent) - &flagged),
    ]
}

/// The workers kept their own rules.
fn conduct(facts: &Facts) -> Vec<Equation> {
    let accepted = facts.accepted();
    let unannounced: BTreeSet<String> =
        accepted.iter().filter(|id| facts.rows.get(*id).is_some_and(|row| !row.begun)).cloned().collect();
    let altered: BTreeSet<String> = facts.taken.iter().flat_map(|taken| taken.altered.iter().cloned()).collect();
    let violations: BTreeSet<String> = facts.taken.iter().flat_map(|taken| taken.violations.iter().cloned()).collect();
    let alarms = facts.rows.iter().filter(|(id, row)| row.duplicate_possible && facts.deliveries(id) < 2);
    let alarms: BTreeSet<String> = alarms.map(|(id, _)| id.clone()).collect();
    vec![
        Equation::new(
            "begun",
            format!("accepted without a durable begin before: {}", grouped(unannounced.len())),
            unannounced,
        ),
        Equation::new(
            "leases",
            format!("attempts that began after their lease was lost: {}", grouped(facts.begun_without_lease.len())),
            facts.begun_without_lease.clone(),
        ),
        Equation::new("bytes", format!("ids resent with other bytes: {}", grouped(altered.len())), altered),
        Equation::new("alarms", format!("duplicates announced that are none: {}", grouped(alarms.len())), alarms),
        Equation::new("protocol", format!("breaches of SMTP by a worker: {}", grouped(violations.len())), violations),
    ]
}

#[cfg(test)]
mod tests;
