//! What two statements do to each other that meet at one row, each held still at the worst moment.

use std::time::Duration;

use outboxd::domain::outcome::{Outcome, Phase};
use outboxd::domain::policy::Next;
use outboxd::domain::state::State;
use outboxd::store::Line;
use outboxd::store::claim::{Claimed, What};
use outboxd::store::evidence::Late;
use outboxd::store::line::Dsn;
use outboxd::store::settle::Settlement;

use crate::harness::rows::{LONG, claim, plain, ready, verdict};
use crate::harness::{PATIENCE, TestDb, eventually};

/// A notification whose first attempt lost its lease after *begin*, and whose resend is being transmitted: the first
/// attempt's result, which is an acceptance and late, and the resend.
async fn resend_under_way(db: &TestDb, line: &mut Line) -> (Settlement, Claimed) {
    let first = db.claimed(line, &claim()).await;
    let id = first.id();
    line.begin(&[(id, first.fence())]).await.unwrap();
    db.age(id, "2 hours").await;
    db.sql(&format!("update outboxd.attempt set begun_at = now() where notification_id = '{id}'")).await.unwrap();
    line.sweep_leases(12, Duration::ZERO).await.unwrap();
    assert_eq!(line.release_resends(96 * LONG).await.unwrap(), 1);
    let resend = line.claim(&claim(), What::Resends, 1, u64::MAX).await.unwrap().remove(0);
    assert_eq!(line.begin(&[(resend.id(), resend.fence())]).await.unwrap().len(), 1);
    let accepted = Settlement::new(first, verdict(Outcome::Sent, Phase::EndOfData), Next::Sent);
    (accepted, resend)
}

/// Waits until so many sessions of this database wait for a lock.
async fn until_waiting(db: &TestDb, count: i64) {
    eventually("they wait for each other", PATIENCE, async || {
        let waiting: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
        )
        .fetch_one(&db.pool)
        .await
        .unwrap();
        if waiting == count { Ok(()) } else { Err(waiting) }
    })
    .await;
}

#[tokio::test]
async fn proof_that_commits_while_a_settlement_waits_for_the_row_stops_the_resend() {
    let db = TestDb::new().await;
    let (mut line, mut evidence_line) = (db.line(), db.line());
    let (accepted, resend) = resend_under_way(&db, &mut line).await;
    let id = resend.id();

    // The same evidence, uncommitted, holds the late result when it has locked the row.
    let mut same = db.pool.begin().await.unwrap();
    sqlx::query(
        "insert into outboxd.evidence (notification_id, attempt_number, kind, proves, source, reference, recorded_by)
         values ($1, 1, 'late_result', 'accepted', 'worker', $2, 'w1')",
    )
    .bind(id.0)
    .bind(format!("fence {}", accepted.fence()))
    .execute(&mut *same)
    .await
    .unwrap();
    let late = tokio::spawn(async move { evidence_line.late_result(&accepted, "w1").await });
    until_waiting(&db, 1).await;
    let again = Next::Retry { delay: Duration::from_secs(60), counted: true, suspected: false };
    let deferred = Settlement::new(resend, verdict(Outcome::Deferred, Phase::Rcpt), again);
    let settle = tokio::spawn(async move { line.settle(&[deferred], 96 * LONG).await });
    until_waiting(&db, 2).await;
    same.rollback().await.unwrap();

    assert_eq!(late.await.unwrap().unwrap(), Late::Recorded(State::Transmitting));
    assert_eq!(settle.await.unwrap().unwrap().len(), 1);
    assert_eq!(
        db.state(id).await,
        "sent",
        "its first attempt was accepted, and that was on record when this was settled"
    );
}

#[tokio::test]
async fn proof_that_commits_while_a_sweep_is_on_its_way_to_the_row_settles_it() {
    let db = TestDb::new().await;
    let (mut line, mut evidence_line) = (db.line(), db.line());
    let ahead = db.claimed(&mut line, &claim()).await;
    let (accepted, resend) = resend_under_way(&db, &mut line).await;
    db.age(ahead.id(), "3 hours").await;
    db.sql(&format!(
        "update outboxd.delivery set lease_until = now() - interval '1 s' where notification_id = '{}'",
        resend.id()
    ))
    .await
    .unwrap();

    let mut held = db.pool.begin().await.unwrap();
    sqlx::query("select from outboxd.attempt where notification_id = $1 for update")
        .bind(ahead.id().0)
        .execute(&mut *held)
        .await
        .unwrap();
    let sweep = tokio::spawn(async move { line.sweep_leases(12, LONG).await });
    until_waiting(&db, 1).await;
    evidence_line.late_result(&accepted, "w1").await.unwrap();
    held.rollback().await.unwrap();

    assert_eq!(sweep.await.unwrap().unwrap().rows, 2);
    assert_eq!(db.state(resend.id()).await, "sent");
}

/// As when the provider's log is read before the lease of a dead worker is over.
#[tokio::test]
async fn proof_that_comes_while_its_attempt_is_running_is_not_lost_with_the_answer() {
    let db = TestDb::new().await;
    let mut line = db.line();
    for lease_lost in [true, false] {
        let claimed = db.claimed(&mut line, &claim()).await;
        let id = claimed.id();
        line.begin(&[(id, claimed.fence())]).await.unwrap();
        db.sql(&format!(
            "insert into outboxd.evidence (notification_id, attempt_number, kind, proves, source, recorded_by)
             values ('{id}', 1, 'mail_log', 'accepted', 'relay', 'a test')"
        ))
        .await
        .unwrap();
        if lease_lost {
            db.age(id, "2 hours").await;
            assert_eq!(line.sweep_leases(12, LONG).await.unwrap().rows, 1);
        } else {
            let unanswered = Settlement::new(
                claimed,
                verdict(Outcome::Uncertain, Phase::EndOfData),
                Next::Doubt { resend_after: Some(Duration::ZERO) },
            );
            assert_eq!(line.settle(&[unanswered], 96 * LONG).await.unwrap().len(), 1);
        }
        assert_eq!(db.state(id).await, "sent");
    }
}

#[tokio::test]
async fn a_claim_of_one_passes_over_an_account_whose_only_row_is_held_by_another() {
    let db = TestDb::new().await;
    let held = db.enqueue(&plain("acme")).await;
    let free = db.enqueue(&plain("beta")).await;
    let mut other = db.pool.begin().await.unwrap();
    sqlx::query("select from outboxd.delivery where notification_id = $1 for update")
        .bind(held.0)
        .execute(&mut *other)
        .await
        .unwrap();
    let claimed = ready(&mut db.line(), &claim(), 1).await;
    assert_eq!(claimed.iter().map(Claimed::id).collect::<Vec<_>>(), [free]);
}

/// A worker that is stopped, or cut off, in the middle of a transaction.
#[tokio::test]
async fn a_worker_that_stops_inside_a_transaction_holds_its_rows_no_longer_than_a_statement_may_take() {
    for transaction_pooling in [false, true] {
        let db = TestDb::new().await;
        let mut line = db.line();
        let held = db.claimed(&mut line, &claim()).await;
        let second = Duration::from_secs(1);
        let mut stopped = Dsn::new(&db.url, second, second, transaction_pooling).unwrap().connect().await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
            "{} select from outboxd.delivery where notification_id = '{}' for update",
            if transaction_pooling { "" } else { "begin;" },
            held.id(),
        )))
        .execute(&mut stopped)
        .await
        .unwrap();
        // The other worker waits for a lock 10 s at most.
        let begun = line.begin(&[(held.id(), held.fence())]).await.unwrap();
        assert_eq!(begun.len(), 1, "transaction_pooling {transaction_pooling}");
    }
}

/// A worker that wakes after the retention of its notification.
#[tokio::test]
async fn a_late_result_of_a_notification_that_is_no_more_is_not_tried_again_and_again() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let claimed = db.claimed(&mut line, &claim()).await;
    let id = claimed.id();
    let late = Settlement::new(claimed, verdict(Outcome::Sent, Phase::EndOfData), Next::Sent);
    db.sql(&format!(
        "delete from outboxd.attempt where notification_id = '{id}'; delete from outboxd.delivery where notification_id = '{id}'"
    ))
    .await
    .unwrap();
    assert!(line.settle(std::slice::from_ref(&late), LONG).await.unwrap().is_empty());
    assert_eq!(line.late_result(&late, "w1").await.unwrap(), Late::Gone);
}
