//! Claiming: whose turn it is, who may hold what, and for how long.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use outboxd::domain::outcome::{Outcome, Phase};
use outboxd::domain::policy::Next;
use outboxd::store::claim::{Turn, What};
use outboxd::store::settle::Settlement;

use crate::harness::TestDb;
use crate::harness::rows::{LONG, claim, plain, ready, verdict};

#[tokio::test]
async fn a_claim_is_recorded_as_an_attempt_before_anything_is_sent() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let claimed = db.claimed(&mut line, &claim()).await;
    let story = db.story(claimed.id()).await;
    assert_eq!(story.notification.state, "claimed");
    let attempt = &story.attempts[0];
    assert_eq!((attempt.number, attempt.fence, attempt.worker.as_str()), (1, claimed.fence().0, "w1"));
    assert_eq!((attempt.provider.as_str(), attempt.dedup_scope.as_str()), ("primary", "primary"));
    assert_eq!((attempt.begun_at, attempt.ended_at), (None, None));
}

#[tokio::test]
async fn eight_workers_at_once_claim_every_row_exactly_once() {
    let db = TestDb::new().await;
    db.sql("select outboxd.enqueue('acme', 'a@example.org', 'b@example.org', 's', 'x') from generate_series(1, 4000)")
        .await
        .unwrap();
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let mut line = db.line();
            tokio::spawn(async move {
                let (mut turn, mut mine) = (Turn::default(), Vec::new());
                loop {
                    let claimed = line.claim(&claim(), What::Ready(&mut turn), 37, u64::MAX).await.unwrap();
                    if claimed.is_empty() {
                        return mine;
                    }
                    mine.extend(claimed.iter().map(outboxd::store::claim::Claimed::id));
                }
            })
        })
        .collect();
    let mut all = Vec::new();
    for worker in workers {
        all.extend(worker.await.unwrap());
    }
    // A worker that finds every row locked by others ends early; what is left is still there to be claimed.
    let mut line = db.line();
    all.extend(ready(&mut line, &claim(), 4_000).await.iter().map(outboxd::store::claim::Claimed::id));
    assert_eq!(all.len(), 4_000);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 4_000);
}

#[tokio::test]
async fn one_row_of_another_account_is_in_the_first_batch_despite_a_backlog_of_thousands() {
    let db = TestDb::new().await;
    db.sql("select outboxd.enqueue('a', 'a@example.org', 'b@example.org', 's', 'x') from generate_series(1, 10000)")
        .await
        .unwrap();
    let lone = db.enqueue(&plain("b")).await;
    let mut line = db.line();
    let batch = ready(&mut line, &claim(), 20).await;
    assert!(batch.iter().any(|claimed| claimed.id() == lone));
}

#[tokio::test]
async fn accounts_share_evenly_and_take_turns_round_and_round() {
    let db = TestDb::new().await;
    for account in ["a", "b", "c", "d", "e"] {
        db.sql(&format!(
            "select outboxd.enqueue('{account}', 'a@example.org', 'b@example.org', 's', 'x') from generate_series(1, 30)"
        ))
        .await
        .unwrap();
    }
    let mut line = db.line();
    let mut turn = Turn::default();
    let mut served: HashMap<String, u32> = HashMap::new();
    for _ in 0..10 {
        let batch = line.claim(&claim(), What::Ready(&mut turn), 2, u64::MAX).await.unwrap();
        assert_eq!(batch.len(), 2);
        for claimed in batch {
            *served.entry(db.story(claimed.id()).await.notification.account_id).or_default() += 1;
        }
    }
    assert_eq!(served.len(), 5);
    assert!(served.values().all(|&count| count == 4), "{served:?}");
}

#[tokio::test]
async fn within_an_account_priority_comes_first_and_then_what_was_due_first() {
    let db = TestDb::new().await;
    let late = db.enqueue(&plain("acme")).await;
    let later = db.enqueue(&plain("acme")).await;
    let urgent = db.enqueue(&outboxd::store::enqueue::NewNotification { priority: Some(0), ..plain("acme") }).await;
    let mut line = db.line();
    let mut ids = Vec::new();
    while let Some(claimed) = ready(&mut line, &claim(), 1).await.pop() {
        ids.push(claimed.id());
    }
    assert_eq!(ids, [urgent, late, later]);
}

#[tokio::test]
async fn a_batch_stops_at_its_byte_budget_but_always_takes_one() {
    let db = TestDb::new().await;
    db.sql("select outboxd.enqueue('a', 'a@example.org', 'b@example.org', 's', repeat('x', 10000)) from generate_series(1, 10)")
        .await
        .unwrap();
    let mut line = db.line();
    let few = line.claim(&claim(), What::Ready(&mut Turn::default()), 10, 25_000).await.unwrap();
    assert_eq!(few.len(), 3, "the third begins below the budget");
    let one = line.claim(&claim(), What::Ready(&mut Turn::default()), 10, 1).await.unwrap();
    assert_eq!(one.len(), 1);
}

#[tokio::test]
async fn what_is_not_due_is_not_claimed_until_its_time_comes() {
    let db = TestDb::new().await;
    let soon = time::OffsetDateTime::now_utc() + Duration::from_secs(3_600);
    let id = db.enqueue(&outboxd::store::enqueue::NewNotification { not_before: Some(soon), ..plain("acme") }).await;
    let mut line = db.line();
    assert_eq!(line.promote().await.unwrap().rows, 0);
    assert!(ready(&mut line, &claim(), 10).await.is_empty());
    let next_in = line.promote().await.unwrap().next_in.expect("a row is waiting");
    assert!((3_500..=3_600).contains(&next_in.as_secs()), "{next_in:?}");
    db.age(id, "2 hours").await;
    assert_eq!(line.promote().await.unwrap().rows, 1);
    assert_eq!(ready(&mut line, &claim(), 10).await.len(), 1);
}

#[tokio::test]
async fn a_route_that_nobody_serves_stays_pending() {
    let db = TestDb::new().await;
    let id =
        db.enqueue(&outboxd::store::enqueue::NewNotification { route: Some("sms".to_owned()), ..plain("acme") }).await;
    let mut line = db.line();
    assert!(ready(&mut line, &claim(), 10).await.is_empty());
    assert_eq!(db.state(id).await, "pending");
}

#[tokio::test]
async fn begin_is_refused_when_the_fence_is_stale_or_the_lease_is_over() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let first = db.claimed(&mut line, &claim()).await;
    let stale = (first.id(), first.fence());
    db.age(first.id(), "2 hours").await;
    assert!(line.begin(&[stale]).await.unwrap().is_empty(), "a paused worker cannot begin even before the sweep");
    assert_eq!(line.sweep_leases(12, LONG).await.unwrap().rows, 1);
    let second = ready(&mut line, &claim(), 1).await.remove(0);
    assert!(second.fence() > first.fence());
    assert!(line.begin(&[stale]).await.unwrap().is_empty());
    let present = (second.id(), second.fence());
    assert!(line.begin(&[stale, present]).await.unwrap().iter().eq(&[present]), "also in the present claim's company");
    assert!(line.begin(&[present]).await.unwrap().contains(&present), "and may be repeated");
}

#[tokio::test]
async fn a_renewed_lease_is_not_swept_and_a_lost_one_is_not_renewed() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let short = outboxd::store::claim::Claim { lease: Duration::from_secs(1), ..claim() };
    let kept = db.claimed(&mut line, &short).await;
    assert_eq!(line.renew(&[(kept.id(), kept.fence())], LONG).await.unwrap(), 1);
    let lost = db.claimed(&mut line, &short).await;
    db.age(lost.id(), "1 minute").await;
    assert_eq!(line.renew(&[(lost.id(), lost.fence())], LONG).await.unwrap(), 0);
    assert_eq!(line.sweep_leases(12, LONG).await.unwrap().rows, 1);
    assert_eq!(db.state(kept.id()).await, "claimed");
    assert_eq!(db.state(lost.id()).await, "pending");
}

#[tokio::test]
async fn the_sweep_finds_one_lost_lease_behind_thousands_that_hold() {
    let db = TestDb::new().await;
    db.sql("select outboxd.enqueue('a', 'a@example.org', 'b@example.org', 's', 'x') from generate_series(1, 3000)")
        .await
        .unwrap();
    let mut line = db.line();
    let held = ready(&mut line, &claim(), 3_000).await;
    db.age(held[1_700].id(), "2 hours").await;
    assert_eq!(line.sweep_leases(12, LONG).await.unwrap().rows, 1);
    assert_eq!(db.state(held[1_700].id()).await, "pending");
}

#[tokio::test]
async fn a_row_that_crashes_its_worker_before_begin_again_and_again_is_set_aside() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let id = db.enqueue(&plain("acme")).await;
    for _ in 0..outboxd::store::recovery::MAX_LOST_CLAIMS {
        assert_eq!(ready(&mut line, &claim(), 1).await.len(), 1);
        db.age(id, "2 hours").await;
        line.sweep_leases(12, LONG).await.unwrap();
    }
    let notification = db.story(id).await.notification;
    assert_eq!(
        (notification.state.as_str(), notification.reason.as_deref(), notification.tries),
        ("failed", Some("exhausted"), 0)
    );
}

#[tokio::test]
async fn an_order_of_commits_other_than_of_ids_loses_nothing() {
    let db = TestDb::new().await;
    let mut slow = db.pool.begin().await.unwrap();
    let first = outboxd::store::enqueue::enqueue(&mut slow, &plain("acme")).await.unwrap();
    let second = db.enqueue(&plain("acme")).await;
    let mut line = db.line();
    let claimed = ready(&mut line, &claim(), 10).await;
    assert_eq!(claimed.iter().map(outboxd::store::claim::Claimed::id).collect::<Vec<_>>(), [second]);
    for claimed in claimed {
        let sent = Settlement::new(
            claimed,
            verdict(Outcome::NotSent, Phase::Connect),
            Next::Fail(outboxd::domain::policy::FailReason::Invalid),
        );
        line.settle(&[sent], LONG).await.unwrap();
    }
    slow.commit().await.unwrap();
    assert_eq!(ready(&mut line, &claim(), 10).await[0].id(), first);
}
