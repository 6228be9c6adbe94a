//! The faults of the two SMTP servers: how often each kind strikes, and how many of each did.
//!
//! Rates only; what a fault does is the script's.

use std::time::Duration;

use super::super::smtp::{Action, Rates, Rule, Script, ScriptHandle, Stage};

/// How late a late answer is: longer than the workers wait for it (`config.toml`), so that it is lost on them.
const LATE_BY: Duration = Duration::from_secs(3);

/// How long a server takes over a message: as a provider does, and so that a worker has sends in flight when it is killed.
const SLOW: Duration = Duration::from_millis(80);

/// Bytes of a large message that come in before it is cut: far more than its headers, far fewer than the kernel buffers.
const CUT_AFTER_BYTES: u64 = 20_000;

/// The recipient of large messages.
pub(super) const ALBUM: &str = "album@";

/// Labels of what is no fault.
const PACE: &str = "slow";

/// How often faults strike. One message in six or so meets one.
const RATES: Rates = Rates {
    greeting_refused: 0.03,
    temporary: 0.012,
    permanent: 0.003,
    unavailable: 0.006,
    garbage: 0.006,
    cut_in_body: 0.006,
    cut_after_dot: 0.006,
    lost_by_close: 0.009,
    lost_by_reset: 0.009,
    lost_by_hang: 0.006,
    lost_by_delay: 0.006,
    lost_by_garbage: 0.006,
    late_by: LATE_BY,
};

/// The weather at one server, drawn from `seed`.
pub(super) fn script(seed: u64) -> Script {
    Script::chaos(seed, RATES)
}

/// What the ready-made weather lacks, and a pace.
pub(super) fn worsen(script: &ScriptHandle) {
    // A message that fits into the kernel's buffers has left as a whole when it is cut: only a large one shows that a cut
    // before the final dot is known not to be an acceptance.
    for cut in [Action::Close, Action::Reset] {
        let rule = Rule::at(Stage::Body, cut.after_bytes(CUT_AFTER_BYTES)).label("large message cut before the dot");
        script.push_front(rule.recipient(ALBUM).probability(0.2));
    }
    script.push(Rule::at(Stage::Mail, Action::Reset).label("reset at MAIL").probability(0.004));
    script.push(Rule::at(Stage::Data, Action::Hang).label("silence at DATA").probability(0.003));
    script.push(Rule::at(Stage::Idle, Action::Reset).label("idle connection reset").probability(0.006));
    // Half of the time the message is taken first, half of it last: a sender that dies meanwhile cannot know which.
    script.push(Rule::at(Stage::EndOfData, Action::Proceed.after(SLOW)).label(PACE).probability(0.5));
    script.push(Rule::at(Stage::EndOfData, Action::Proceed.after(SLOW).after_accepting()).label(PACE));
}

/// How often each kind of fault struck at a server, by name.
pub(super) fn struck(script: &ScriptHandle) -> Vec<(String, u64)> {
    script.fired().into_iter().filter(|(label, _)| label != PACE).collect()
}
