//! Evidence on the real database: any order and repetition leave the same row, and each finds the attempt it is about.

use outboxd::domain::evidence::{Kind, Proof};
use outboxd::domain::ids::NotificationId;
use outboxd::domain::outcome::{Outcome, Phase};
use outboxd::domain::policy::Next;
use outboxd::domain::state::State;
use outboxd::store::Line;
use outboxd::store::evidence::{NewEvidence, Recorded};
use outboxd::store::settle::Settlement;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::harness::TestDb;
use crate::harness::rows::{LONG, claim, holding, verdict};

fn evidence(id: NotificationId, attempt: Option<i32>, proof: Proof, for_good: bool, reference: &str) -> NewEvidence {
    NewEvidence {
        id,
        account_id: None,
        attempt,
        provider: None,
        kind: Kind::MailLog,
        proof,
        for_good,
        source: "test".to_owned(),
        reference: reference.to_owned(),
        detail: json!({}),
        happened_at: None,
        recorded_by: "test".to_owned(),
    }
}

/// An uncertain notification with this many attempts in doubt.
async fn in_doubt(db: &TestDb, line: &mut Line, attempts: usize) -> NotificationId {
    let claimed = db.claimed(line, &holding()).await;
    let id = claimed.id();
    let mut next = Some(claimed);
    for _ in 0..attempts {
        let claimed = match next.take() {
            Some(claimed) => claimed,
            None => {
                db.sql(&format!("update outboxd.delivery set state = 'pending', due_at = now(), ready = true, closes_at = null, resend_decided = true where notification_id = '{id}'")).await.unwrap();
                line.claim(&holding(), outboxd::store::claim::What::Resends, 1, u64::MAX).await.unwrap().remove(0)
            }
        };
        assert_eq!(line.begin(&[(id, claimed.fence())]).await.unwrap().len(), 1);
        let doubt =
            Settlement::new(claimed, verdict(Outcome::Uncertain, Phase::EndOfData), Next::Doubt { resend_after: None });
        line.settle(&[doubt], 96 * LONG).await.unwrap();
    }
    assert_eq!(db.state(id).await, "uncertain");
    id
}

/// What evidence decides, without ids and times.
async fn row(db: &TestDb, id: NotificationId) -> Value {
    sqlx::query_scalar(
        "select jsonb_build_object('state', state, 'reason', reason, 'ready', ready, 'doubt', doubt_since is not null,
            'scope', doubt_scope, 'duplicate', duplicate_possible, 'contradiction', contradiction, 'tries', tries, 'closes', closes_at is not null)
         from outboxd.delivery where notification_id = $1",
    )
    .bind(id.0)
    .fetch_one(&db.pool)
    .await
    .unwrap()
}

#[tokio::test]
async fn any_order_and_repetition_leave_the_same_row() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let mut runner = TestRunner::deterministic();
    let pieces =
        proptest::collection::vec((1..=2i32, proptest::sample::select(Proof::ALL.to_vec()), any::<bool>()), 1..6);
    let mut ends = std::collections::BTreeSet::new();
    for round in 0..60 {
        let mut set = pieces.new_tree(&mut runner).unwrap().current();
        if round % 3 == 0 {
            // Chance alone rarely leaves out every proof of acceptance.
            set.retain(|(_, proof, _)| *proof == Proof::NotAccepted);
            set.extend([(1, Proof::NotAccepted, round % 2 == 0), (2, Proof::NotAccepted, false)]);
        }
        let order = Just(set.clone()).prop_shuffle().new_tree(&mut runner).unwrap().current();
        let (one, other) = (in_doubt(&db, &mut line, 2).await, in_doubt(&db, &mut line, 2).await);
        for (id, pieces) in [(one, set.clone()), (other, [order.clone(), order].concat())] {
            for (attempt, proof, for_good) in pieces {
                let reference = format!("{attempt} {for_good}");
                line.record_evidence(&evidence(id, Some(attempt), proof, for_good, &reference)).await.unwrap();
            }
        }
        let end = row(&db, one).await;
        assert_eq!(end, row(&db, other).await, "{set:?}");
        ends.insert(end["state"].to_string());
        // Out of the way of the next claims.
        db.sql("update outboxd.delivery set state = 'failed', reason = 'refused', due_at = null, ready = false, doubt_since = null, doubt_until = null, doubt_scope = null, closes_at = null where state = 'pending'").await.unwrap();
    }
    assert!(ends.len() >= 4, "the sets differ enough: {ends:?}");
}

#[tokio::test]
async fn the_same_evidence_twice_is_the_same_evidence() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let id = in_doubt(&db, &mut line, 1).await;
    let piece = evidence(id, Some(1), Proof::NotAccepted, false, "line 1");
    let first = line.record_evidence(&piece).await.unwrap();
    assert!(matches!(first, Recorded::New { after, .. } if after.as_str() == "pending"), "{first:?}");
    let before = row(&db, id).await;
    for _ in 0..3 {
        let again = line.record_evidence(&piece).await.unwrap();
        assert!(matches!(again, Recorded::AlreadyKnown(_)), "{again:?}");
    }
    assert_eq!(row(&db, id).await, before);
    assert_eq!(db.story(id).await.evidence.len(), 1);
}

#[tokio::test]
async fn evidence_finds_its_attempt_by_provider_and_time() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let id = in_doubt(&db, &mut line, 3).await;
    db.sql(&format!(
        "begin; set local session_replication_role = replica;
         update outboxd.attempt set provider = case number when 2 then 'backup' else 'primary' end,
            begun_at = timestamptz '2026-01-01 00:00Z' + number * interval '1 hour' where notification_id = '{id}'; commit"
    ))
    .await
    .unwrap();
    let at = |hour: i64| Some(OffsetDateTime::from_unix_timestamp(1_767_225_600 + hour * 3_600).unwrap());
    for (provider, happened_at, number) in [
        (None, None, 3),
        (None, at(2), 2),
        (Some("backup"), at(9), 2),
        (Some("primary"), at(2), 1),
        (Some("primary"), at(9), 3),
        // A clock that is far behind: the last one is the best guess.
        (None, at(0), 3),
    ] {
        let reference = format!("{provider:?} {happened_at:?}");
        let piece = NewEvidence {
            provider: provider.map(str::to_owned),
            happened_at,
            ..evidence(id, None, Proof::Inconclusive, false, &reference)
        };
        line.record_evidence(&piece).await.unwrap();
        let recorded = db.story(id).await.evidence.pop().unwrap();
        assert_eq!((recorded.attempt_number, recorded.reference), (number, reference));
    }
    let stranger =
        NewEvidence { provider: Some("other".to_owned()), ..evidence(id, None, Proof::Accepted, false, "x") };
    assert_eq!(line.record_evidence(&stranger).await.unwrap(), Recorded::NoAttempt);
    let nobody = evidence(NotificationId(uuid::Uuid::nil()), None, Proof::Accepted, false, "x");
    assert_eq!(line.record_evidence(&nobody).await.unwrap(), Recorded::UnknownNotification);
    let unbegun = db.claimed(&mut line, &claim()).await;
    assert_eq!(
        line.record_evidence(&evidence(unbegun.id(), None, Proof::Accepted, false, "x")).await.unwrap(),
        Recorded::NoAttempt
    );
}

#[tokio::test]
async fn refusals_that_come_again_and_again_cost_tries_and_never_loop() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let id = in_doubt(&db, &mut line, 1).await;
    for piece in 0..20 {
        line.record_evidence(&evidence(id, Some(1), Proof::NotAccepted, false, &format!("line {piece}")))
            .await
            .unwrap();
    }
    let story = db.story(id).await;
    assert_eq!((story.notification.state.as_str(), story.notification.tries, story.attempts.len()), ("pending", 1, 1));
}

#[tokio::test]
async fn what_comes_while_it_is_transmitted_is_weighed_again_when_that_is_over() {
    let db = TestDb::new().await;
    let mut line = db.line();
    // A bounce that is heard before the answer is settled.
    let claimed = db.claimed(&mut line, &holding()).await;
    let bounced = claimed.id();
    line.begin(&[(bounced, claimed.fence())]).await.unwrap();
    line.record_evidence(&evidence(bounced, Some(1), Proof::Bounced, true, "dsn")).await.unwrap();
    assert_eq!(db.state(bounced).await, "transmitting");
    line.settle(&[Settlement::new(claimed, verdict(Outcome::Sent, Phase::EndOfData), Next::Sent)], LONG).await.unwrap();
    // Acceptance by the log, before the lease of a dead worker ends. (Of a refusal nothing is taken before then.)
    let lost = db.claimed(&mut line, &holding()).await;
    line.begin(&[(lost.id(), lost.fence())]).await.unwrap();
    let refused = evidence(lost.id(), Some(1), Proof::NotAccepted, false, "log");
    assert_eq!(line.record_evidence(&refused).await.unwrap(), Recorded::NoAttempt);
    line.record_evidence(&evidence(lost.id(), Some(1), Proof::Inconclusive, false, "log")).await.unwrap();
    db.age(lost.id(), "2 hours").await;
    line.sweep_leases(10, std::time::Duration::ZERO).await.unwrap();
    assert_eq!((db.state(bounced).await.as_str(), db.state(lost.id()).await.as_str()), ("sent", "uncertain"));
    assert_eq!(line.weigh_again().await.unwrap(), 2);
    assert_eq!((db.state(bounced).await.as_str(), db.state(lost.id()).await.as_str()), ("bounced", "uncertain"));
    assert_eq!(line.weigh_again().await.unwrap(), 0);
    line.record_evidence(&refused).await.unwrap();
    assert_eq!(db.state(lost.id()).await, "pending");
}

#[tokio::test]
async fn proof_of_an_earlier_attempt_stops_the_next_resend_whatever_was_said_before_it() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let id = in_doubt(&db, &mut line, 1).await;
    db.sql(&format!("update outboxd.delivery set state = 'pending', due_at = now(), ready = true, closes_at = null, resend_decided = true where notification_id = '{id}'")).await.unwrap();
    let resend = line.claim(&holding(), outboxd::store::claim::What::Resends, 1, u64::MAX).await.unwrap().remove(0);
    line.begin(&[(id, resend.fence())]).await.unwrap();
    for (proof, reference) in [(Proof::NotAccepted, "one log"), (Proof::Accepted, "another log")] {
        line.record_evidence(&evidence(id, Some(1), proof, false, reference)).await.unwrap();
    }
    let deferred = Next::Retry { delay: std::time::Duration::ZERO, counted: true, suspected: false };
    line.settle(&[Settlement::new(resend, verdict(Outcome::Deferred, Phase::EndOfData), deferred)], 96 * LONG)
        .await
        .unwrap();
    let end = row(&db, id).await;
    assert_eq!((&end["state"], &end["contradiction"]), (&"sent".into(), &true.into()), "{end}");
}

#[tokio::test]
async fn what_evidence_puts_back_is_sent_no_more_often_than_its_tries_allow() {
    use outboxd::sandbox::smtp::{Action, Rule, Stage};

    let server = crate::crashes::server([Rule::at(Stage::EndOfData, Action::Close).label("cut")]).await;
    let db = TestDb::new().await;
    let id = db.enqueue(&crate::harness::rows::plain("acme")).await;
    let config = crate::harness::Config::new(&db).provider("primary", server.addr()).set("retry.max_tries", "3");
    let _worker = crate::harness::Proc::start(&["worker"], &config.text());
    let mut line = db.line();
    for number in 1..=3 {
        crate::crashes::in_state(&db, id, "uncertain").await;
        let piece = evidence(id, Some(number), Proof::NotAccepted, false, "log");
        line.record_evidence(&piece).await.unwrap();
    }
    crate::crashes::in_state(&db, id, "failed").await;
    let story = db.story(id).await;
    assert_eq!((story.notification.reason.as_deref(), story.notification.tries), (Some("exhausted"), 3), "{story:#?}");
    assert_eq!(story.attempts.iter().filter(|attempt| attempt.begun_at.is_some()).count(), 3);
}

#[tokio::test]
async fn a_piece_that_is_sent_again_stays_with_its_attempt_and_non_acceptance_is_never_guessed() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let id = in_doubt(&db, &mut line, 1).await;
    let seen = |attempt, reference: &str| evidence(id, attempt, Proof::NotAccepted, false, reference);
    assert_eq!(line.record_evidence(&seen(None, "r1")).await.unwrap(), Recorded::NoAttempt, "which one?");
    let first = line.record_evidence(&seen(Some(1), "r1")).await.unwrap();
    assert!(matches!(first, Recorded::New { after: State::Pending, .. }), "{first:?}");
    // The next attempt runs, and the answer to the first was lost: the same again is the same.
    let claimed = crate::harness::rows::ready(&mut line, &holding(), 1).await.remove(0);
    line.begin(&[(id, claimed.fence())]).await.unwrap();
    for again in [seen(Some(1), "r1"), seen(None, "r1")] {
        let again = line.record_evidence(&again).await.unwrap();
        assert_eq!(again, Recorded::AlreadyKnown(State::Transmitting));
    }
    assert_eq!(
        line.record_evidence(&seen(Some(2), "r2")).await.unwrap(),
        Recorded::NoAttempt,
        "it may yet be accepted"
    );
    let doubt =
        Settlement::new(claimed, verdict(Outcome::Uncertain, Phase::EndOfData), Next::Doubt { resend_after: None });
    line.settle(&[doubt], 96 * LONG).await.unwrap();
    line.weigh_again().await.unwrap();
    assert_eq!(db.state(id).await, "uncertain", "nothing was said of the second attempt");
    // Nor does acceptance of the first, read again, say anything of one that was made on purpose since.
    let accepted = |attempt| evidence(id, attempt, Proof::Accepted, false, "4F1");
    assert!(matches!(
        line.record_evidence(&accepted(Some(2))).await.unwrap(),
        Recorded::New { after: State::Sent, .. }
    ));
    assert_eq!(line.record_evidence(&accepted(None)).await.unwrap(), Recorded::AlreadyKnown(State::Sent));
    assert_eq!(db.story(id).await.evidence.len(), 2);
}
