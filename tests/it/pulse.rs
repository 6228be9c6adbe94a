//! What workers tell of their providers: counts that are right, breakers that are seen, and silence that is noticed.

use std::time::Duration;

use outboxd::domain::ids::NotificationId;
use outboxd::domain::outcome::Outcome;
use outboxd::domain::tally::Tally;
use outboxd::sandbox::smtp::{Action, Rule, Stage};
use outboxd::store::pulse::{self, Now, Report};
use uuid::Uuid;

use crate::crashes::{count, server};
use crate::harness::rows::plain;
use crate::harness::{Config, PATIENCE, Proc, TestDb, eventually};

/// Not sent, deferred, refused, uncertain, sent: in all lines of a provider.
async fn told(db: &TestDb, provider: &str) -> [i64; 5] {
    let (a, b, c, d, e) = sqlx::query_as(
        "select coalesce(sum(not_sent), 0), coalesce(sum(deferred), 0), coalesce(sum(refused), 0), coalesce(sum(uncertain), 0),
             coalesce(sum(sent), 0)
         from outboxd.tally where provider = $1",
    )
    .bind(provider)
    .fetch_one(&db.pool)
    .await
    .unwrap();
    [a, b, c, d, e]
}

async fn pulses(db: &TestDb) -> Vec<(String, String)> {
    sqlx::query_as("select provider, breaker from outboxd.pulse order by provider").fetch_all(&db.pool).await.unwrap()
}

fn report(tally: Tally) -> Report {
    let now = Now { breaker: "open", breaker_seconds: Some(30.0), under_way: 1, connections: 8 };
    Report { provider: "primary".to_owned(), now: Some(now), tally }
}

#[tokio::test]
async fn a_report_that_is_written_twice_counts_once() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let id = NotificationId(Uuid::now_v7());
    let mut tally = Tally::default();
    tally.count(id, Outcome::Sent, Duration::from_millis(7));
    tally.count(id, Outcome::Refused, Duration::ZERO);
    for _ in 0..3 {
        line.pulse("w1", 0, &[report(tally.clone())]).await.unwrap();
    }
    line.pulse("w1", 1, &[report(Tally::default())]).await.unwrap();
    line.pulse("w2", 0, &[report(tally)]).await.unwrap();
    assert_eq!(told(&db, "primary").await, [0, 0, 2, 0, 2]);
    let mut conn = db.pool.acquire().await.unwrap();
    let latencies = pulse::latencies(&mut conn).await.unwrap();
    assert_eq!((latencies.len(), latencies[0].p50_ms, latencies[0].p99_ms), (1, Some(7), Some(7)));
    let hour = pulse::last_hour(&mut conn).await.unwrap();
    assert_eq!((hour.len(), hour[0].sent, hour[0].refused, hour[0].last_minute), (1, 2, 2, 2));
    let heard = pulse::heard(&mut conn).await.unwrap();
    assert_eq!(heard.len(), 2);
    assert!(heard.iter().all(|one| one.breaker == "open" && one.breaker_seconds.is_some_and(|left| left > 20.0)));
    for (stretches, minutes) in [(60, 1), (96, 15)] {
        let chart = pulse::stretches(&mut conn, stretches, minutes).await.unwrap();
        assert_eq!(chart.len(), usize::try_from(stretches).unwrap());
        assert_eq!(chart.iter().map(|stretch| stretch.sent).sum::<i64>(), 2);
    }
    // What is a day old is forgotten, and whoever was not heard of for an hour.
    db.sql("update outboxd.tally set at = at - interval '26 hours'").await.unwrap();
    db.sql("update outboxd.pulse set heard_at = heard_at - interval '61 minutes'").await.unwrap();
    line.pulse("w1", 2, &[report(Tally::default())]).await.unwrap();
    assert_eq!((told(&db, "primary").await, pulses(&db).await.len()), ([0; 5], 1));
}

#[tokio::test]
async fn a_worker_that_ends_has_told_everything_and_is_not_missed() {
    let db = TestDb::new().await;
    let refuse = Rule::at(Stage::EndOfData, Action::reply("554 5.6.0 no")).times(3).label("refused");
    let lost = Rule::at(Stage::EndOfData, Action::Close.after_accepting()).times(2).label("lost");
    let server = server([refuse, lost]).await;
    let config = Config::new(&db).set("provider_defaults.breaker.threshold", "1000").provider("primary", server.addr());
    for _ in 0..20 {
        db.enqueue(&plain("acme")).await;
    }
    let mut worker = Proc::start(&["worker"], &config.text());
    eventually("it has worked", PATIENCE, async || {
        let at_rest = (count(&db, "sent").await, count(&db, "failed").await, count(&db, "uncertain").await);
        if at_rest == (15, 3, 2) { Ok(()) } else { Err(at_rest) }
    })
    .await;
    worker.terminate();
    assert_eq!(worker.ended().await.code(), Some(0));
    assert_eq!(told(&db, "primary").await, [0, 0, 3, 2, 15]);
    assert_eq!(pulses(&db).await, []);
}

#[tokio::test]
async fn what_a_killed_worker_left_in_doubt_is_counted_by_whoever_finds_it() {
    let db = TestDb::new().await;
    let server = server([Rule::at(Stage::EndOfData, Action::Hang).label("hung")]).await;
    let config = Config::new(&db).provider("primary", server.addr()).set("lease.duration", "60s");
    let id = db.enqueue(&plain("acme")).await;
    let killed = Proc::start(&["worker"], &config.text());
    server.script().wait_fired("hung", 1).await;
    killed.kill();
    db.age(id, "1 hour").await;
    // It uses another provider, and counts for the lost one all the same.
    let config = Config::new(&db).provider("backup", server.addr()).set("route.default", "backup");
    let mut finder = Proc::start(&["worker"], &config.text());
    eventually("the doubt is told", PATIENCE, async || {
        let told = told(&db, "primary").await;
        if told == [0, 0, 0, 1, 0] { Ok(()) } else { Err(told) }
    })
    .await;
    // The killed one said of its provider what it said last; the other's says how it stands.
    let providers: Vec<_> = pulses(&db).await.into_iter().map(|(provider, _)| provider).collect();
    assert!(providers.contains(&"backup".to_owned()), "{providers:?}");
    finder.terminate();
    finder.ended().await;
}

#[tokio::test]
async fn a_breaker_that_is_open_is_told_with_the_trouble_that_opened_it() {
    let db = TestDb::new().await;
    let server = server([Rule::at(Stage::Mail, Action::reply("451 4.3.0 try later")).label("deferred")]).await;
    let config = Config::new(&db)
        .set("provider_defaults.breaker.threshold", "2")
        .set("provider_defaults.breaker.open_min", "10m")
        .set("provider_defaults.breaker.open_max", "10m")
        .provider("primary", server.addr());
    for _ in 0..4 {
        db.enqueue(&plain("acme")).await;
    }
    server.pause().await;
    let _worker = Proc::start(&["worker"], &config.text());
    eventually("it is told", PATIENCE, async || {
        let pulses = pulses(&db).await;
        if pulses == [("primary".to_owned(), "open".to_owned())] { Ok(()) } else { Err(pulses) }
    })
    .await;
    let mut conn = db.pool.acquire().await.unwrap();
    let heard = pulse::heard(&mut conn).await.unwrap();
    assert!(heard[0].breaker_seconds.unwrap() > 400.0, "{heard:?}");
    let troubles = pulse::troubles(&mut conn).await.unwrap();
    assert_eq!((troubles.len(), troubles[0].phase.as_deref()), (1, Some("connect")), "{troubles:?}");
}
