//! What the server does instead of what it should: an ordered list of [`Rule`]s, each a [`Stage`], conditions and an
//! [`Action`].
//!
//! The first rule that matches wins; a server without a matching rule behaves. Rules can be replaced while it runs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::watch;

use super::action::{Action, Stage};
use super::mailbox::Recipient;

/// Where a connection stands when a rule is asked.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// The stage.
    pub stage: Stage,
    /// The connection's number since the server started, from 1.
    pub connection: u64,
    /// The transaction's number on its connection, from 1; 0 before the first MAIL.
    pub transaction: u64,
    /// The envelope's sender; empty outside a transaction.
    pub sender: &'a str,
    /// At RCPT the one recipient that is asked for, later all that were accepted.
    pub recipients: &'a [Recipient],
    /// The notification id, known at the end of data.
    pub notification: Option<&'a str>,
    /// The message, known at the end of data.
    pub message: Option<&'a [u8]>,
}

type Condition = Arc<dyn Fn(&Moment<'_>) -> bool + Send + Sync>;

/// One line of a [`Script`].
#[derive(Clone)]
pub struct Rule {
    stage: Stage,
    action: Action,
    label: String,
    conditions: Vec<Condition>,
    skip: u64,
    left: Option<u64>,
    probability: Option<f64>,
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule").field("label", &self.label).field("left", &self.left).finish_non_exhaustive()
    }
}

impl Rule {
    /// `action` whenever a connection comes to `stage`.
    #[must_use]
    pub fn at(stage: Stage, action: Action) -> Self {
        let label = format!("{stage}: {action}");
        Self { stage, action, label, conditions: Vec::new(), skip: 0, left: None, probability: None }
    }

    /// The name under which [`ScriptHandle::fired`] counts; by default stage and action.
    #[must_use]
    pub fn label(mut self, label: &str) -> Self {
        label.clone_into(&mut self.label);
        self
    }

    /// Only the first time.
    #[must_use]
    pub fn once(self) -> Self {
        self.times(1)
    }

    /// Only the first `count` times.
    #[must_use]
    pub fn times(mut self, count: u64) -> Self {
        self.left = Some(count);
        self
    }

    /// Not the first `count` times that everything else fits.
    #[must_use]
    pub fn skip(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Only with this probability (0 to 1), drawn when everything else fits. Every connection draws from its own
    /// sequence, fixed by the script's seed and the connection's number.
    #[must_use]
    pub fn probability(mut self, probability: f64) -> Self {
        self.probability = Some(probability.clamp(0.0, 1.0));
        self
    }

    /// Only on this connection, counted from 1.
    #[must_use]
    pub fn connection(self, number: u64) -> Self {
        self.when(move |moment| moment.connection == number)
    }

    /// Only in this transaction of a connection, counted from 1.
    #[must_use]
    pub fn transaction(self, number: u64) -> Self {
        self.when(move |moment| moment.transaction == number)
    }

    /// Only for a recipient whose address contains `part`.
    #[must_use]
    pub fn recipient(self, part: &str) -> Self {
        let part = part.to_owned();
        self.when(move |moment| moment.recipients.iter().any(|recipient| recipient.address.contains(&part)))
    }

    /// Only for this notification: by its header at the end of data, before that by an envelope sender that contains
    /// the id (as in `bounce+ID@example.com`).
    #[must_use]
    pub fn notification(self, id: &str) -> Self {
        let id = id.to_owned();
        self.when(move |moment| match moment.notification {
            Some(known) => known == id,
            None => moment.sender.contains(&id),
        })
    }

    /// Only when `condition` holds. It is asked under the script's lock: it must be short and must not use the script.
    #[must_use]
    pub fn when(mut self, condition: impl Fn(&Moment<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.conditions.push(Arc::new(condition));
        self
    }

    fn fires(&mut self, moment: &Moment<'_>, draws: &mut StdRng) -> bool {
        if self.stage != moment.stage || self.left == Some(0) || !self.conditions.iter().all(|holds| holds(moment)) {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if self.probability.is_some_and(|probability| !draws.random_bool(probability)) {
            return false;
        }
        self.left = self.left.map(|left| left - 1);
        true
    }
}

/// An ordered list of rules, and the seed of their draws. The empty script behaves.
#[derive(Debug, Clone, Default)]
pub struct Script {
    rules: Vec<Rule>,
    seed: u64,
}

impl Script {
    /// A script of one rule or several.
    #[must_use]
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self { rules: rules.into_iter().collect(), seed: 0 }
    }

    /// Sets the seed of [`Rule::probability`].
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

struct Running {
    script: Script,
    fired: BTreeMap<String, u64>,
}

/// A cheap handle on the script of a running server.
#[derive(Clone)]
pub struct ScriptHandle {
    running: Arc<Mutex<Running>>,
    changes: watch::Sender<()>,
}

impl ScriptHandle {
    pub(super) fn new(script: Script) -> Self {
        Self {
            running: Arc::new(Mutex::new(Running { script, fired: BTreeMap::new() })),
            changes: watch::Sender::new(()),
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Running) -> T) -> T {
        work(&mut self.running.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts another script in place of the present one. Connections that are open keep drawing from their sequence.
    pub fn replace(&self, script: Script) {
        self.with(|running| running.script = script);
    }

    /// Adds a rule that is asked after all others.
    pub fn push(&self, rule: Rule) {
        self.with(|running| running.script.rules.push(rule));
    }

    /// Adds a rule that is asked before all others.
    pub fn push_front(&self, rule: Rule) {
        self.with(|running| running.script.rules.insert(0, rule));
    }

    /// From now on, behave.
    pub fn clear(&self) {
        self.with(|running| running.script.rules.clear());
    }

    /// How often each rule fired, by label, since the server started.
    #[must_use]
    pub fn fired(&self) -> BTreeMap<String, u64> {
        self.with(|running| running.fired.clone())
    }

    /// How often rules of this label fired.
    #[must_use]
    pub fn times_fired(&self, label: &str) -> u64 {
        self.with(|running| running.fired.get(label).copied().unwrap_or_default())
    }

    /// Waits until rules of this label have fired `count` times: the connection then stands at the rule's stage.
    pub async fn wait_fired(&self, label: &str, count: u64) {
        let mut changes = self.changes.subscribe();
        while self.times_fired(label) < count {
            // The sender lives in `self`, so this cannot fail.
            let _ = changes.changed().await;
        }
    }

    pub(super) fn draws(&self, connection: u64) -> StdRng {
        // An odd constant (2^64 over the golden ratio) keeps the sequences of neighbouring connections apart.
        let seed = self.with(|running| running.script.seed);
        StdRng::seed_from_u64(seed.wrapping_add(connection.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }

    pub(super) fn choose(&self, moment: &Moment<'_>, draws: &mut StdRng) -> Action {
        let action = self.with(|running| {
            let rule = running.script.rules.iter_mut().find_map(|rule| rule.fires(moment, draws).then_some(&*rule))?;
            match running.fired.get_mut(&rule.label) {
                Some(count) => *count += 1,
                None => drop(running.fired.insert(rule.label.clone(), 1)),
            }
            Some(rule.action.clone())
        });
        let Some(action) = action else { return Action::Proceed };
        self.changes.send_replace(());
        action
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(stage: Stage, connection: u64) -> Moment<'static> {
        Moment {
            stage,
            connection,
            transaction: 1,
            sender: "bounce+n-1@example.com",
            recipients: &[],
            notification: None,
            message: None,
        }
    }

    fn plan(seed: u64, connection: u64) -> Vec<Action> {
        let rules = [Rule::at(Stage::Mail, Action::Close).probability(0.5)];
        let handle = ScriptHandle::new(Script::new(rules).seeded(seed));
        let mut draws = handle.draws(connection);
        (0..64).map(|_| handle.choose(&moment(Stage::Mail, connection), &mut draws)).collect()
    }

    #[test]
    fn the_first_rule_that_matches_wins_and_a_spent_rule_makes_way_for_the_next() {
        let handle = ScriptHandle::new(Script::new([
            Rule::at(Stage::Rcpt, Action::Hang),
            Rule::at(Stage::Mail, Action::Close).times(2),
            Rule::at(Stage::Mail, Action::Reset).label("the rest"),
        ]));
        let mut draws = handle.draws(1);
        let chosen: Vec<_> = (0..4).map(|_| handle.choose(&moment(Stage::Mail, 1), &mut draws)).collect();
        assert_eq!(chosen, [Action::Close, Action::Close, Action::Reset, Action::Reset]);
        assert_eq!(handle.choose(&moment(Stage::Data, 1), &mut draws), Action::Proceed);
        assert_eq!(handle.fired(), BTreeMap::from([("mail: close".to_owned(), 2), ("the rest".to_owned(), 2)]));
    }

    #[test]
    fn conditions_must_all_hold() {
        let handle = ScriptHandle::new(Script::new([
            Rule::at(Stage::Mail, Action::Close).connection(2).notification("n-1"),
            Rule::at(Stage::Mail, Action::Reset).notification("n-2"),
            Rule::at(Stage::Mail, Action::Hang).when(|moment| moment.connection == 3).skip(1),
        ]));
        let mut draws = handle.draws(1);
        let mut at = |connection| handle.choose(&moment(Stage::Mail, connection), &mut draws);
        assert_eq!([at(1), at(2), at(3), at(3)], [Action::Proceed, Action::Close, Action::Proceed, Action::Hang]);
    }

    #[test]
    fn a_seed_gives_the_same_plan_and_another_seed_or_connection_another() {
        assert_eq!(plan(7, 1), plan(7, 1));
        assert_ne!(plan(7, 1), plan(8, 1));
        assert_ne!(plan(7, 1), plan(7, 2));
        let closed = plan(7, 1).iter().filter(|action| **action == Action::Close).count();
        assert!((16..=48).contains(&closed), "{closed} of 64 at a probability of one half");
    }
}
