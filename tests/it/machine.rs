//! The state machine under a random walk: workers that claim, begin, pause, lose their leases and settle late, a server
//! that accepts or not, and time that jumps. The walk knows the truth; the database knows only what it was told.
//!
//! Checked after every step: what G3 and G4 of the design promise. Each walk prints its seed when it fails.

use std::time::Duration;

use outboxd::domain::outcome::{Outcome, Phase};
use outboxd::domain::policy::{FailReason, Next};
use outboxd::store::Line;
use outboxd::store::claim::{Claim, Claimed, Turn, What};
use outboxd::store::settle::Settlement;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::harness::TestDb;
use crate::harness::rows::{LONG, claim, holding, plain, verdict};

const WALKS: u64 = 150;
const STEPS: u32 = 50;
const DEADLINE: Duration = LONG.saturating_mul(96);
const MAX_TRIES: u16 = 4;

/// What an attempt that began came to, in truth and in its worker's eyes.
#[derive(Debug, Clone, Copy)]
struct Sending {
    number: i32,
    accepted: bool,
    learnt: Outcome,
    /// Whether the worker's word has reached the database.
    told: bool,
    /// How long ago it began, as far as the database's clock goes.
    age: Duration,
}

/// A claim in a worker's hands.
struct Hand {
    claimed: Claimed,
    begun: bool,
}

struct Walk<'a> {
    db: &'a TestDb,
    line: Line,
    terms: Claim,
    dice: StdRng,
    id: outboxd::domain::ids::NotificationId,
    hands: Vec<Hand>,
    sendings: Vec<Sending>,
    trail: Vec<String>,
}

impl Walk<'_> {
    fn chance(&mut self, one_in: u32) -> bool {
        self.dice.random_range(0..one_in) == 0
    }

    async fn step(&mut self) {
        match self.dice.random_range(0..15) {
            0..=3 => self.claim().await,
            4..=7 => self.begin().await,
            8..=9 => self.settle().await,
            10..=11 => self.time_passes().await,
            _ => self.sweep().await,
        }
    }

    async fn claim(&mut self) {
        let mut turn = Turn::default();
        let what = if self.chance(2) { What::Ready(&mut turn) } else { What::Resends };
        self.line.promote().await.unwrap();
        let claimed = self.line.claim(&self.terms, what, 1, u64::MAX).await.unwrap();
        for claimed in claimed {
            self.trail.push(format!("claimed, fence {}", claimed.fence()));
            self.hands.push(Hand { claimed, begun: false });
        }
    }

    /// Begins a claim, stale ones too, as a paused worker would; then the server decides.
    async fn begin(&mut self) {
        let waiting: Vec<usize> = (0..self.hands.len()).filter(|&n| !self.hands[n].begun).collect();
        if waiting.is_empty() {
            return;
        }
        let chosen = waiting[self.dice.random_range(0..waiting.len())];
        let claim = (self.hands[chosen].claimed.id(), self.hands[chosen].claimed.fence());
        if self.line.begin(&[claim]).await.unwrap().is_empty() {
            self.trail.push(format!("begin refused, fence {}", claim.1));
            return;
        }
        // G3: every earlier attempt is known not to have been accepted, or the provider deduplicates and time allows.
        for earlier in &self.sendings {
            let known =
                earlier.told && matches!(earlier.learnt, Outcome::NotSent | Outcome::Deferred | Outcome::Refused);
            let safe = self.terms.dedup_window.is_some()
                && self.terms.terms.resend_room.is_some_and(|room| earlier.age <= room);
            assert!(known || safe, "began although {earlier:?} may have been accepted");
        }
        self.hands[chosen].begun = true;
        let (accepted, learnt) = match self.dice.random_range(0..8) {
            0 => (true, Outcome::Sent),
            1 | 2 => (true, Outcome::Uncertain),
            3 | 4 => (false, Outcome::Uncertain),
            5 => (false, Outcome::Deferred),
            6 => (false, Outcome::NotSent),
            _ => (false, Outcome::Refused),
        };
        let number = self.hands[chosen].claimed.number();
        self.trail.push(format!("begun {number}: accepted {accepted}, learnt {learnt}"));
        self.sendings.push(Sending { number, accepted, learnt, told: false, age: Duration::ZERO });
    }

    /// A worker tells what it learnt, in time or late.
    async fn settle(&mut self) {
        if self.hands.is_empty() {
            return;
        }
        let Hand { claimed, begun } = self.hands.swap_remove(self.dice.random_range(0..self.hands.len()));
        let (number, tries) = (claimed.number(), claimed.record().tries);
        let learnt = match self.sendings.iter_mut().find(|sending| sending.number == number) {
            Some(sending) if begun => {
                sending.told = true;
                sending.learnt
            }
            _ => Outcome::NotSent,
        };
        let retry = Next::Retry { delay: Duration::from_secs(60), counted: begun, suspected: false };
        let next = match learnt {
            Outcome::Sent => Next::Sent,
            Outcome::Uncertain => {
                Next::Doubt { resend_after: (tries + 1 < MAX_TRIES).then_some(Duration::from_secs(60)) }
            }
            Outcome::Refused => Next::Fail(FailReason::Refused),
            Outcome::NotSent | Outcome::Deferred if begun && tries + 1 >= MAX_TRIES => {
                Next::Fail(FailReason::Exhausted)
            }
            Outcome::NotSent | Outcome::Deferred => retry,
        };
        let phase = if begun { Phase::EndOfData } else { Phase::Connect };
        let result = Settlement::new(claimed, verdict(learnt, phase), next);
        let settled = self.line.settle(std::slice::from_ref(&result), DEADLINE).await.unwrap();
        if settled.is_empty() {
            let late = self.line.late_result(&result, "w1").await.unwrap();
            self.trail.push(format!("told late {number}: {learnt}: {late:?}"));
        } else {
            self.trail.push(format!("told {number}: {learnt}"));
        }
    }

    async fn time_passes(&mut self) {
        let minutes = [2, 30, 120][self.dice.random_range(0..3)];
        self.pass(minutes).await;
    }

    async fn pass(&mut self, minutes: u64) {
        self.db.age(self.id, &format!("{minutes} minutes")).await;
        for sending in &mut self.sendings {
            sending.age += Duration::from_secs(minutes * 60);
        }
        self.trail.push(format!("{minutes} minutes pass"));
    }

    async fn sweep(&mut self) {
        let moved = [
            self.line.sweep_leases(MAX_TRIES, Duration::from_secs(30)).await.unwrap().rows,
            self.line.recall_resends().await.unwrap(),
            self.line.expire().await.unwrap(),
            self.line.close_windows().await.unwrap(),
            self.line.release_resends(DEADLINE).await.unwrap(),
        ];
        self.trail.push(format!("swept {moved:?}"));
    }

    /// What holds at every moment. Says whether the notification has come to an end.
    async fn check(&mut self) -> bool {
        let story = self.db.story(self.id).await;
        let n = &story.notification;
        let accepted = self.sendings.iter().filter(|sending| sending.accepted).count();
        let in_the_dark = self.sendings.iter().any(|s| s.accepted && !(s.told && s.learnt == Outcome::Sent));
        match n.state.as_str() {
            "failed" => assert_eq!(accepted, 0, "failed, and accepted all the same"),
            "sent" => assert!(accepted > 0, "sent, and never accepted"),
            _ => {}
        }
        if self.terms.dedup_window.is_none() {
            assert!(accepted <= 1, "accepted twice by a provider that does not deduplicate");
        }
        let running = n.lease_until.is_some();
        if in_the_dark && !running {
            let visible = matches!(n.state.as_str(), "uncertain" | "unresolved" | "sent");
            let to_be_resent = n.state == "pending" && n.doubt_since.is_some() && n.resend_until.is_some();
            assert!(visible || to_be_resent, "a doubt that shows nowhere: {}", n.state);
        }
        let open = story.attempts.iter().filter(|attempt| attempt.ended_at.is_none()).count();
        assert_eq!(open, usize::from(running), "one open attempt for a lease, none without");
        matches!(n.state.as_str(), "sent" | "failed" | "unresolved")
    }

    /// Everybody finishes, and time runs out.
    async fn rest(&mut self) {
        while !self.hands.is_empty() {
            self.settle().await;
            self.check().await;
        }
        for _ in 0..8 {
            self.pass(24 * 60).await;
            self.sweep().await;
            self.line.promote().await.unwrap();
            for what in [What::Ready(&mut Turn::default()), What::Resends] {
                for claimed in self.line.claim(&self.terms, what, 1, u64::MAX).await.unwrap() {
                    assert!(claimed.overdue() || self.sendings.len() <= usize::from(MAX_TRIES));
                    let next = if claimed.overdue() { FailReason::Expired } else { FailReason::Invalid };
                    let given_up = Settlement::new(claimed, verdict(Outcome::NotSent, Phase::Claim), Next::Fail(next));
                    self.line.settle(&[given_up], DEADLINE).await.unwrap();
                }
            }
            self.check().await;
        }
        let state = self.db.state(self.id).await;
        assert!(matches!(state.as_str(), "sent" | "failed" | "unresolved"), "stuck in {state}");
    }
}

#[tokio::test]
async fn no_walk_breaks_what_the_design_promises() {
    let db = TestDb::new().await;
    for seed in 0..WALKS {
        let id = db.enqueue(&plain("acme")).await;
        let terms = if seed % 2 == 0 { claim() } else { holding() };
        let dice = StdRng::seed_from_u64(seed);
        let mut walk = Walk {
            db: &db,
            line: db.line(),
            terms,
            dice,
            id,
            hands: Vec::new(),
            sendings: Vec::new(),
            trail: Vec::new(),
        };
        let walked = std::panic::AssertUnwindSafe(async {
            for _ in 0..STEPS {
                walk.step().await;
                if walk.check().await && walk.hands.is_empty() {
                    break;
                }
            }
            walk.rest().await;
        });
        if let Err(fault) = futures_catch(walked).await {
            let what = fault.downcast_ref::<String>().map_or("a panic", String::as_str);
            panic!("seed {seed}: {what}\n{}\n{:#?}", walk.trail.join("\n"), db.story(id).await);
        }
    }
}

/// Runs a future to its end or its panic.
async fn futures_catch(
    future: std::panic::AssertUnwindSafe<impl Future<Output = ()>>,
) -> Result<(), Box<dyn std::any::Any + Send>> {
    let mut future = Box::pin(future.0);
    std::future::poll_fn(|context| {
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(std::task::Poll::Pending) => std::task::Poll::Pending,
            Ok(std::task::Poll::Ready(())) => std::task::Poll::Ready(Ok(())),
            Err(fault) => std::task::Poll::Ready(Err(fault)),
        }
    })
    .await
}
