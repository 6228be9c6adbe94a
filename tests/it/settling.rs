//! Settling: what each outcome makes of a notification, and what time does to those in doubt.

use std::time::Duration;

use outboxd::domain::outcome::{Outcome, Phase};
use outboxd::domain::policy::{FailReason, Next};
use outboxd::store::Line;
use outboxd::store::claim::{Claim, Claimed, What};
use outboxd::store::evidence::Late;
use outboxd::store::settle::Settlement;

use crate::harness::TestDb;
use crate::harness::rows::{LONG, claim, holding, plain, ready, verdict};

const AT_ONCE: Next = Next::Retry { delay: Duration::ZERO, counted: false, suspected: false };
const IN_A_MINUTE: Next = Next::Retry { delay: Duration::from_secs(60), counted: true, suspected: false };
const DOUBT: Next = Next::Doubt { resend_after: Some(Duration::from_secs(60)) };

async fn settle(line: &mut Line, claimed: Claimed, outcome: Outcome, phase: Phase, next: Next) {
    let claim = (claimed.id(), claimed.fence());
    let settled = line.settle(&[Settlement::new(claimed, verdict(outcome, phase), next)], 96 * LONG).await.unwrap();
    assert!(settled.contains(&claim));
}

/// Claims and begins one notification.
async fn begun(db: &TestDb, line: &mut Line, claim: &Claim) -> Claimed {
    let claimed = db.claimed(line, claim).await;
    assert_eq!(line.begin(&[(claimed.id(), claimed.fence())]).await.unwrap().len(), 1);
    claimed
}

/// Leaves one notification in doubt.
async fn doubtful(db: &TestDb, line: &mut Line, claim: &Claim) -> outboxd::domain::ids::NotificationId {
    let claimed = begun(db, line, claim).await;
    let id = claimed.id();
    settle(line, claimed, Outcome::Uncertain, Phase::EndOfData, DOUBT).await;
    id
}

#[tokio::test]
async fn an_accepted_notification_is_sent_and_keeps_the_providers_reply() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let claimed = begun(&db, &mut line, &claim()).await;
    let id = claimed.id();
    settle(&mut line, claimed, Outcome::Sent, Phase::EndOfData, Next::Sent).await;
    let story = db.story(id).await;
    assert_eq!((story.notification.state.as_str(), story.notification.tries), ("sent", 1));
    let attempt = &story.attempts[0];
    assert_eq!((attempt.outcome.as_deref(), attempt.reply_code), (Some("sent"), Some(250)));
    assert_eq!(attempt.reply_text.as_deref(), Some("queued as 4F1"));
    assert!(attempt.begun_at <= attempt.ended_at && attempt.begun_at.is_some());
}

#[tokio::test]
async fn a_fault_before_begin_costs_nothing_and_a_deferral_costs_a_try() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let claimed = db.claimed(&mut line, &claim()).await;
    let id = claimed.id();
    settle(&mut line, claimed, Outcome::NotSent, Phase::Connect, AT_ONCE).await;
    assert_eq!((db.state(id).await.as_str(), db.story(id).await.notification.tries), ("pending", 0));
    let claimed = ready(&mut line, &claim(), 1).await.remove(0);
    settle(&mut line, claimed, Outcome::Deferred, Phase::Rcpt, IN_A_MINUTE).await;
    let notification = db.story(id).await.notification;
    assert_eq!((notification.state.as_str(), notification.tries), ("pending", 1));
    assert!(ready(&mut line, &claim(), 1).await.is_empty(), "it is not due yet");
}

#[tokio::test]
async fn a_retry_that_would_come_after_the_deadline_fails_as_expired_now() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let soon = time::OffsetDateTime::now_utc() + Duration::from_secs(30);
    let id = db.enqueue(&outboxd::store::enqueue::NewNotification { expires_at: Some(soon), ..plain("acme") }).await;
    let claimed = ready(&mut line, &claim(), 1).await.remove(0);
    settle(&mut line, claimed, Outcome::Deferred, Phase::Mail, IN_A_MINUTE).await;
    let notification = db.story(id).await.notification;
    assert_eq!((notification.state.as_str(), notification.reason.as_deref()), ("failed", Some("expired")));
}

#[tokio::test]
async fn an_expired_notification_is_given_up_while_it_waits() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let soon = time::OffsetDateTime::now_utc() + Duration::from_secs(60);
    let id = db.enqueue(&outboxd::store::enqueue::NewNotification { expires_at: Some(soon), ..plain("acme") }).await;
    assert_eq!(line.expire().await.unwrap(), 0);
    db.age(id, "2 minutes").await;
    let overdue = ready(&mut line, &claim(), 1).await.remove(0);
    assert!(overdue.overdue(), "a claim that comes before the sweep sees it too");
    assert!(line.begin(&[(overdue.id(), overdue.fence())]).await.unwrap().is_empty(), "and cannot begin");
    settle(&mut line, overdue, Outcome::NotSent, Phase::Claim, AT_ONCE).await;
    assert_eq!(db.story(id).await.notification.reason.as_deref(), Some("expired"));
}

#[tokio::test]
async fn no_answer_makes_it_uncertain_with_both_windows_counted_from_begin() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let id = doubtful(&db, &mut line, &claim()).await;
    let story = db.story(id).await;
    let (n, begun_at) = (&story.notification, story.attempts[0].begun_at);
    assert_eq!((n.state.as_str(), n.doubt_since, n.doubt_scope.as_deref()), ("uncertain", begun_at, Some("primary")));
    assert_eq!(n.doubt_until, begun_at.map(|begun| begun + 24 * LONG));
    assert_eq!(n.resend_until, begun_at.map(|begun| begun + LONG));
    assert!(n.resend_at.is_some());
}

#[tokio::test]
async fn without_a_dedup_contract_it_is_held_and_becomes_unresolved_when_the_window_is_over() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let id = doubtful(&db, &mut line, &holding()).await;
    db.age(id, "2 hours").await;
    assert_eq!(line.release_resends(96 * LONG).await.unwrap(), 0);
    assert_eq!(line.close_windows().await.unwrap(), 0);
    assert_eq!(db.state(id).await, "uncertain");
    db.age(id, "23 hours").await;
    assert_eq!(line.close_windows().await.unwrap(), 1);
    assert_eq!(line.close_windows().await.unwrap(), 0, "a second sweep changes nothing");
    assert_eq!(db.state(id).await, "unresolved");
}

#[tokio::test]
async fn a_resend_goes_through_the_same_dedup_scope_only() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let id = doubtful(&db, &mut line, &claim()).await;
    db.age(id, "2 minutes").await;
    assert_eq!(line.release_resends(96 * LONG).await.unwrap(), 1);
    let mut other = claim();
    other.provider = "backup".to_owned();
    other.terms.dedup_scope = "backup".to_owned();
    assert!(ready(&mut line, &other, 10).await.is_empty());
    assert!(line.claim(&other, What::Resends, 10, u64::MAX).await.unwrap().is_empty());
    assert!(ready(&mut line, &claim(), 10).await.is_empty(), "a claim of what is new never takes a resend");
    let resend = line.claim(&claim(), What::Resends, 10, u64::MAX).await.unwrap().remove(0);
    assert_eq!((resend.id(), resend.number()), (id, 2));
    assert_eq!(line.begin(&[(resend.id(), resend.fence())]).await.unwrap().len(), 1);
    settle(&mut line, resend, Outcome::Sent, Phase::EndOfData, Next::Sent).await;
    let notification = db.story(id).await.notification;
    assert_eq!((notification.state.as_str(), notification.duplicate_possible), ("sent", false));
}

#[tokio::test]
async fn a_resend_cannot_begin_once_it_could_not_end_inside_the_windows() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let id = doubtful(&db, &mut line, &claim()).await;
    db.age(id, "2 minutes").await;
    line.release_resends(96 * LONG).await.unwrap();
    let resend = line.claim(&claim(), What::Resends, 10, u64::MAX).await.unwrap().remove(0);
    db.sql(&format!(
        "update outboxd.delivery set resend_until = now() - interval '1 s' where notification_id = '{id}'"
    ))
    .await
    .unwrap();
    assert!(line.begin(&[(resend.id(), resend.fence())]).await.unwrap().is_empty());
    settle(&mut line, resend, Outcome::NotSent, Phase::Begin, AT_ONCE).await;
    assert_eq!(db.state(id).await, "uncertain");
}

#[tokio::test]
async fn a_released_resend_that_nobody_begins_in_time_is_uncertain_again() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let id = doubtful(&db, &mut line, &claim()).await;
    db.age(id, "2 minutes").await;
    line.release_resends(96 * LONG).await.unwrap();
    assert_eq!(db.state(id).await, "pending");
    db.age(id, "1 hour").await;
    assert_eq!(line.recall_resends().await.unwrap(), 1);
    let notification = db.story(id).await.notification;
    assert_eq!((notification.state.as_str(), notification.resend_at), ("uncertain", None));
}

#[tokio::test]
async fn a_refused_resend_does_not_hide_that_the_first_attempt_may_have_been_accepted() {
    for next in [Next::Fail(FailReason::Refused), Next::Fail(FailReason::Exhausted), Next::Fail(FailReason::Invalid)] {
        let db = TestDb::new().await;
        let mut line = db.line();
        let id = doubtful(&db, &mut line, &claim()).await;
        db.age(id, "2 minutes").await;
        line.release_resends(96 * LONG).await.unwrap();
        let resend = line.claim(&claim(), What::Resends, 10, u64::MAX).await.unwrap().remove(0);
        settle(&mut line, resend, Outcome::Refused, Phase::Rcpt, next).await;
        let notification = db.story(id).await.notification;
        assert_eq!(
            (notification.state.as_str(), notification.reason, notification.resend_at),
            ("uncertain", None, None)
        );
        db.age(id, "1 day").await;
        line.close_windows().await.unwrap();
        assert_eq!(db.state(id).await, "unresolved");
    }
}

#[tokio::test]
async fn accepting_duplicates_says_on_the_row_that_one_is_possible() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let mut careless = claim();
    careless.dedup_window = None;
    let id = doubtful(&db, &mut line, &careless).await;
    db.age(id, "2 minutes").await;
    line.release_resends(96 * LONG).await.unwrap();
    let resend = line.claim(&careless, What::Resends, 10, u64::MAX).await.unwrap().remove(0);
    line.begin(&[(resend.id(), resend.fence())]).await.unwrap();
    settle(&mut line, resend, Outcome::Sent, Phase::EndOfData, Next::Sent).await;
    let notification = db.story(id).await.notification;
    assert_eq!((notification.state.as_str(), notification.duplicate_possible), ("sent", true));
}

#[tokio::test]
async fn a_crash_before_begin_costs_nothing_and_one_after_it_is_uncertain() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let before = db.claimed(&mut line, &claim()).await.id();
    let after = begun(&db, &mut line, &claim()).await.id();
    for id in [before, after] {
        db.age(id, "2 hours").await;
    }
    assert_eq!(line.sweep_leases(12, Duration::from_secs(60)).await.unwrap().rows, 2);
    assert_eq!(line.sweep_leases(12, Duration::from_secs(60)).await.unwrap().rows, 0);
    let (before, after) = (db.story(before).await, db.story(after).await);
    assert_eq!((before.notification.state.as_str(), before.notification.tries), ("pending", 0));
    assert_eq!(before.attempts[0].outcome.as_deref(), Some("not_sent"));
    assert_eq!((after.notification.state.as_str(), after.notification.tries), ("uncertain", 1));
    assert_eq!(after.attempts[0].outcome.as_deref(), Some("uncertain"));
    assert_eq!(after.notification.doubt_since, after.attempts[0].begun_at);
}

#[tokio::test]
async fn settling_twice_is_the_same_as_settling_once() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let claimed = begun(&db, &mut line, &claim()).await;
    let id = claimed.id();
    let result = Settlement::new(claimed, verdict(Outcome::Sent, Phase::EndOfData), Next::Sent);
    assert!(line.settle(std::slice::from_ref(&result), LONG).await.unwrap().contains(&(id, result.fence())));
    assert!(line.settle(std::slice::from_ref(&result), LONG).await.unwrap().is_empty());
    assert_eq!(line.late_result(&result, "w1").await.unwrap(), Late::AlreadySettled);
    assert!(db.story(id).await.evidence.is_empty());
}

/// Loses the lease of a begun notification and returns its result, which is then late.
async fn late(db: &TestDb, line: &mut Line, outcome: Outcome, next: Next) -> Settlement {
    let claimed = begun(db, line, &claim()).await;
    db.age(claimed.id(), "2 hours").await;
    line.sweep_leases(12, LONG).await.unwrap();
    Settlement::new(claimed, verdict(outcome, Phase::EndOfData), next)
}

#[tokio::test]
async fn a_late_acceptance_is_evidence_that_settles_the_doubt() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let result = late(&db, &mut line, Outcome::Sent, Next::Sent).await;
    assert!(line.settle(std::slice::from_ref(&result), LONG).await.unwrap().is_empty());
    for _ in 0..2 {
        let late = line.late_result(&result, "w1").await.unwrap();
        assert_eq!(late, Late::Recorded(outboxd::domain::state::State::Sent));
    }
    let story = db.story(result.id()).await;
    assert_eq!((story.notification.state.as_str(), story.evidence.len()), ("sent", 1));
    assert_eq!(story.attempts[0].outcome.as_deref(), Some("uncertain"), "the record is not overwritten");
    assert_eq!((story.evidence[0].kind.as_str(), story.evidence[0].proves.as_str()), ("late_result", "accepted"));
}

#[tokio::test]
async fn a_late_refusal_fails_it_and_a_late_deferral_puts_it_back() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let refused = late(&db, &mut line, Outcome::Refused, Next::Fail(FailReason::Refused)).await;
    line.late_result(&refused, "w1").await.unwrap();
    let notification = db.story(refused.id()).await.notification;
    assert_eq!((notification.state.as_str(), notification.reason.as_deref()), ("failed", Some("refused")));
    let deferred = late(&db, &mut line, Outcome::Deferred, IN_A_MINUTE).await;
    line.late_result(&deferred, "w1").await.unwrap();
    let notification = db.story(deferred.id()).await.notification;
    assert_eq!((notification.state.as_str(), notification.doubt_since), ("pending", None));
    assert_eq!(ready(&mut line, &claim(), 1).await[0].id(), deferred.id());
}

#[tokio::test]
async fn proof_of_acceptance_stops_a_resend_that_has_not_begun() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let result = late(&db, &mut line, Outcome::Sent, Next::Sent).await;
    db.sql("update outboxd.delivery set resend_at = now()").await.unwrap();
    db.sql("update outboxd.delivery set resend_until = now() + interval '1 hour'").await.unwrap();
    assert_eq!(line.release_resends(96 * LONG).await.unwrap(), 1);
    let resend = line.claim(&claim(), What::Resends, 10, u64::MAX).await.unwrap().remove(0);
    line.late_result(&result, "w1").await.unwrap();
    assert_eq!(db.state(result.id()).await, "sent");
    assert!(line.begin(&[(resend.id(), resend.fence())]).await.unwrap().is_empty());
    let story = db.story(result.id()).await;
    assert_eq!(
        (story.attempts[1].outcome.as_deref(), story.attempts[1].ended_by.as_deref()),
        (Some("not_sent"), Some("evidence"))
    );
    assert!(!story.notification.duplicate_possible);
}

#[tokio::test]
async fn proof_of_acceptance_after_a_resend_began_too_late_to_be_deduplicated_says_that_a_duplicate_is_possible() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let result = late(&db, &mut line, Outcome::Sent, Next::Sent).await;
    db.sql("update outboxd.delivery set resend_at = now(), resend_until = now() + interval '1 hour'").await.unwrap();
    line.release_resends(96 * LONG).await.unwrap();
    let resend = line.claim(&claim(), What::Resends, 10, u64::MAX).await.unwrap().remove(0);
    line.begin(&[(resend.id(), resend.fence())]).await.unwrap();
    line.late_result(&result, "w1").await.unwrap();
    assert_eq!(db.state(result.id()).await, "transmitting");
    settle(&mut line, resend, Outcome::Sent, Phase::EndOfData, Next::Sent).await;
    let notification = db.story(result.id()).await.notification;
    assert_eq!((notification.state.as_str(), notification.duplicate_possible), ("sent", true));
}

/// A notification whose worker lost its lease after *begin*, and whose resend has begun since; with the late result.
async fn resent(db: &TestDb, line: &mut Line, claim: &Claim) -> (Settlement, Claimed) {
    let first = begun(db, line, claim).await;
    let id = first.id();
    let late = Settlement::new(first, verdict(Outcome::Sent, Phase::EndOfData), Next::Sent);
    db.sql("update outboxd.delivery set lease_until = now() where lease_until is not null").await.unwrap();
    line.sweep_leases(12, Duration::ZERO).await.unwrap();
    line.release_resends(96 * LONG).await.unwrap();
    let resend = line.claim(claim, What::Resends, 10, u64::MAX).await.unwrap().remove(0);
    assert_eq!(line.begin(&[(id, resend.fence())]).await.unwrap().len(), 1);
    (late, resend)
}

#[tokio::test]
async fn proof_of_acceptance_beside_a_resend_announces_a_duplicate_only_where_the_provider_does_not_deduplicate() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let mut careless = claim();
    careless.dedup_window = None;
    for (claim, duplicate) in [(claim(), false), (careless, true)] {
        for settled_first in [false, true] {
            let (late, resend) = resent(&db, &mut line, &claim).await;
            let id = late.id();
            if settled_first {
                settle(&mut line, resend, Outcome::Sent, Phase::EndOfData, Next::Sent).await;
                line.late_result(&late, "w1").await.unwrap();
            } else {
                line.late_result(&late, "w1").await.unwrap();
                settle(&mut line, resend, Outcome::Sent, Phase::EndOfData, Next::Sent).await;
            }
            let now = db.story(id).await.notification;
            assert_eq!((now.state.as_str(), now.duplicate_possible), ("sent", duplicate), "{claim:?} {settled_first}");
        }
    }
}

#[tokio::test]
async fn proof_of_acceptance_beside_a_resend_stops_the_next_whatever_that_one_came_to() {
    let db = TestDb::new().await;
    let mut line = db.line();
    for (outcome, next) in [
        (Outcome::Deferred, AT_ONCE),
        (Outcome::Refused, Next::Fail(FailReason::Refused)),
        (Outcome::Uncertain, Next::Doubt { resend_after: Some(Duration::ZERO) }),
    ] {
        let (late, resend) = resent(&db, &mut line, &claim()).await;
        line.late_result(&late, "w1").await.unwrap();
        settle(&mut line, resend, outcome, Phase::EndOfData, next).await;
        let story = db.story(late.id()).await;
        let now = &story.notification;
        assert_eq!((now.state.as_str(), now.doubt_since, now.duplicate_possible), ("sent", None, false), "{outcome}");
        assert_eq!(story.attempts[1].outcome.as_deref(), Some(outcome.as_str()), "the record tells what it came to");
    }
    let (late, _resend) = resent(&db, &mut line, &claim()).await;
    line.late_result(&late, "w1").await.unwrap();
    db.sql("update outboxd.delivery set lease_until = now() where lease_until is not null").await.unwrap();
    line.sweep_leases(12, Duration::ZERO).await.unwrap();
    let now = db.story(late.id()).await.notification;
    assert_eq!((now.state.as_str(), now.doubt_since), ("sent", None), "its lease was lost");
}

#[tokio::test]
async fn a_batch_settles_each_row_by_its_own_fence() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let (mut batch, mut ids) = (Vec::new(), Vec::new());
    for n in 0..10 {
        let claimed = begun(&db, &mut line, &claim()).await;
        if n == 7 {
            db.age(claimed.id(), "2 hours").await;
            line.sweep_leases(12, LONG).await.unwrap();
        }
        ids.push((claimed.id(), claimed.fence()));
        batch.push(Settlement::new(claimed, verdict(Outcome::Sent, Phase::EndOfData), Next::Sent));
    }
    let settled = line.settle(&batch, LONG).await.unwrap();
    assert_eq!(settled.len(), 9);
    assert!(!settled.contains(&ids[7]));
}
