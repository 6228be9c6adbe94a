//! Finding notifications: every way leads to all of them, page after page, and says where it stopped looking.

use outboxd::domain::outcome::{Outcome, Phase};
use outboxd::domain::policy::{FailReason, Next};
use outboxd::domain::state::State;
use outboxd::store::search::{self, Filter, Place};
use outboxd::store::settle::Settlement;
use uuid::Uuid;

use crate::harness::TestDb;
use crate::harness::rows::{LONG, claim, holding, ready, verdict};

/// Every row that a filter finds, by pages of `limit` that look at `look` rows each; and how many pages that took.
async fn all(db: &TestDb, filter: &Filter, limit: usize, look: usize) -> (Vec<Uuid>, usize) {
    let mut conn = db.pool.acquire().await.unwrap();
    let (mut filter, mut found, mut pages) = (filter.clone(), Vec::new(), 0);
    loop {
        let page = search::list(&mut conn, &filter, limit, look).await.unwrap();
        pages += 1;
        assert!(page.rows.len() <= limit);
        let full = page.rows.len() == limit;
        found.extend(page.rows.iter().map(|row| row.id));
        filter.below = match (page.looked_to, page.rows.last()) {
            (Some(looked_to), _) => Some(looked_to),
            (None, Some(last)) if full => Some(last.id),
            (None, _) => return (found, pages),
        };
    }
}

async fn expected(db: &TestDb, condition: &str) -> Vec<Uuid> {
    let query = format!(
        "select d.notification_id from outboxd.delivery d join outboxd.outbox o on o.id = d.notification_id
         left join outboxd.attempt a on a.notification_id = o.id where {condition} order by 1 desc"
    );
    sqlx::query_scalar(sqlx::AssertSqlSafe(query)).fetch_all(&db.pool).await.unwrap()
}

#[tokio::test]
async fn every_filter_finds_all_that_it_should_by_whatever_index_and_in_pages_of_any_size() {
    let db = TestDb::new().await;
    db.sql(
        "select outboxd.enqueue('account ' || n % 7, 'a@example.org', 'user' || n % 50 || '@example.net', 's', 'x')
         from generate_series(1, 1200) n",
    )
    .await
    .unwrap();
    let mut line = db.line();
    let claimed = ready(&mut line, &holding(), 300).await;
    let mut ends = Vec::new();
    for (at, claimed) in claimed.into_iter().enumerate() {
        if at >= 290 {
            continue;
        }
        line.begin(&[(claimed.id(), claimed.fence())]).await.unwrap();
        let mut end = match at % 3 {
            0 => (verdict(Outcome::Sent, Phase::EndOfData), Next::Sent),
            1 => (verdict(Outcome::Refused, Phase::Rcpt), Next::Fail(FailReason::Refused)),
            _ => (verdict(Outcome::Uncertain, Phase::EndOfData), Next::Doubt { resend_after: None }),
        };
        end.0.error = Some(if at % 2 == 0 { "The Odd Word".to_owned() } else { "another".to_owned() });
        ends.push(Settlement::new(claimed, end.0, end.1));
    }
    line.settle(&ends, 96 * LONG).await.unwrap();
    db.sql(
        "update outboxd.delivery set contradiction = true
         where notification_id in (select notification_id from outboxd.delivery order by 1 limit 40)",
    )
    .await
    .unwrap();
    let of_state = |state| Filter { state: Some(state), ..Filter::default() };
    let filters = [
        (Filter::default(), "true"),
        (of_state(State::Pending), "d.state = 'pending'"),
        (of_state(State::Claimed), "d.state = 'claimed'"),
        (of_state(State::Sent), "d.state = 'sent'"),
        (of_state(State::Failed), "d.state = 'failed'"),
        (of_state(State::Uncertain), "d.state = 'uncertain'"),
        (of_state(State::Cancelled), "false"),
        (Filter { account: Some("account 3".to_owned()), ..Filter::default() }, "d.account_id = 'account 3'"),
        (
            Filter { account: Some("account 3".to_owned()), ..of_state(State::Failed) },
            "d.account_id = 'account 3' and d.state = 'failed'",
        ),
        (
            Filter { recipient: Some("user3@example.net".to_owned()), ..Filter::default() },
            "o.recipient = 'user3@example.net'",
        ),
        (Filter { recipient: Some("nobody@example.net".to_owned()), ..Filter::default() }, "false"),
        (Filter { provider: Some(claim().provider.clone()), ..Filter::default() }, "a.provider is not null"),
        (Filter { outcome: Some(Outcome::Refused), ..Filter::default() }, "a.outcome = 'refused'"),
        (Filter { text: Some("odd word".to_owned()), ..Filter::default() }, "a.error = 'The Odd Word'"),
        (Filter { contradiction: Some(true), ..Filter::default() }, "d.contradiction"),
    ];
    for (filter, condition) in filters {
        let right = expected(&db, condition).await;
        for (limit, look) in [(50, usize::MAX), (7, 1), (2_000, 300)] {
            let (found, pages) = all(&db, &filter, limit, look).await;
            assert_eq!(found, right, "{condition}, {limit} a page, looking at {look}");
            assert!(pages <= right.len() / limit + 10, "{condition}: {pages} pages of {limit} looking at {look}");
        }
    }
}

#[tokio::test]
async fn what_is_in_doubt_is_found_by_the_time_that_is_left_page_after_page() {
    let db = TestDb::new().await;
    db.sql("select outboxd.enqueue('acme', 'a@example.org', 'b@example.net', 's', 'x') from generate_series(1, 700)")
        .await
        .unwrap();
    let mut line = db.line();
    let mut ends = Vec::new();
    for claimed in ready(&mut line, &holding(), 700).await {
        line.begin(&[(claimed.id(), claimed.fence())]).await.unwrap();
        let end = verdict(Outcome::Uncertain, Phase::EndOfData);
        ends.push(Settlement::new(claimed, end, Next::Doubt { resend_after: None }));
    }
    line.settle(&ends, 96 * LONG).await.unwrap();
    // Many of them with the same time.
    db.sql(
        "update outboxd.delivery d set doubt_until = u.until, closes_at = u.until
         from (select notification_id, now() + (abs(hashtext(notification_id::text)) % 20 - 5) * interval '1 hour' as until
               from outboxd.delivery) u
         where u.notification_id = d.notification_id",
    )
    .await
    .unwrap();
    line.close_windows().await.unwrap();
    let mut conn = db.pool.acquire().await.unwrap();
    for (state, condition) in [
        (None, "state in ('uncertain', 'unresolved')"),
        (Some(State::Uncertain), "state = 'uncertain'"),
        (Some(State::Unresolved), "state = 'unresolved'"),
    ] {
        let query = format!(
            "select notification_id from outboxd.delivery where {condition} order by doubt_until, notification_id"
        );
        let right: Vec<Uuid> = sqlx::query_scalar(sqlx::AssertSqlSafe(query)).fetch_all(&db.pool).await.unwrap();
        assert!(right.len() > 50, "{}", right.len());
        for (limit, look) in [(200, 1_000), (9, usize::MAX), (1_000, 1)] {
            let filter = Filter { state, ..Filter::default() };
            let (mut found, mut after): (Vec<Uuid>, Option<Place>) = (Vec::new(), None);
            loop {
                let page = search::uncertain(&mut conn, &filter, after, limit, look).await.unwrap();
                found.extend(page.rows.iter().map(|row| row.id));
                after = page.looked_to;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(found, right, "{condition}, {limit} a page, looking at {look}");
        }
    }
}
