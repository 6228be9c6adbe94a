//! The API under fire: lost commits, lost answers, many at once, and crashes at random; judged by what is stored.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use outboxd::domain::token::Scope;
use outboxd::sandbox::cluster::{Cluster, Options};
use outboxd::sandbox::guardian::free_port;
use outboxd::sandbox::proxy::{Cut, Direction, Proxy};
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::daemon::through;
use crate::harness::api::{Answer, Api, Call, api_config, message};
use crate::harness::{PATIENCE, TestDb, cluster, eventually, say};

async fn stored_once(db: &TestDb) {
    eventually("the operation is committed", PATIENCE, async || {
        let stored = db.stored().await;
        if stored == (1, 1, 1) { Ok(()) } else { Err(stored) }
    })
    .await;
}

/// An API whose way to the database can be broken.
async fn behind_a_proxy(db: &TestDb, settings: &[(&str, &str)]) -> (Api, Proxy) {
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], cluster().port()))).await.unwrap();
    let config = api_config(db).set("database.url", &through(&proxy, &db.url));
    let config = settings.iter().fold(config, |config, (key, value)| config.set(key, value));
    (Api::with(db, &config).await, proxy)
}

#[tokio::test]
async fn an_answer_that_is_lost_on_its_way_to_the_caller_is_given_again() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let proxy = Proxy::start(api.addr).await.unwrap();
    proxy.stall(Direction::ToClient);
    let (call, addr) = (api.post("k1", &message()), proxy.addr());
    let lost = tokio::spawn(async move { call.ask(addr).await });
    stored_once(&db).await;
    proxy.cut(Cut::Reset).await;
    assert_eq!(lost.await.unwrap(), None);
    let first = api.ask(&api.post("k1", &message())).await;
    let second = api.ask(&api.post("k1", &message())).await;
    let stored: String =
        sqlx::query_scalar("select response_body from outboxd.receipt").fetch_one(&db.pool).await.unwrap();
    assert_eq!((first.status, &first.body, &second.body), (201, &stored, &stored));
    assert!(first.replayed() && second.replayed());
    assert_eq!(db.stored().await, (1, 1, 1));
}

#[tokio::test]
async fn a_commit_whose_acknowledgement_is_lost_is_asked_for_again_and_answered() {
    let db = TestDb::new().await;
    let (api, proxy) = behind_a_proxy(&db, &[]).await;
    // A connection is there, so that the statement is the next thing on it.
    assert_eq!(api.ask(&api.call("GET /v1/operations/messages.create/none")).await.status, 404);
    // The statement waits for this lock after its reservation, so that the answers can be stalled behind it.
    let mut lock = db.pool.begin().await.unwrap();
    sqlx::query("lock table outboxd.message in exclusive mode").execute(&mut *lock).await.unwrap();
    let (call, addr) = (api.post("k1", &message()), api.addr);
    let asking = tokio::spawn(async move { call.ask(addr).await });
    db.until_something_waits_for_a_lock().await;
    proxy.stall(Direction::ToClient);
    lock.rollback().await.unwrap();
    stored_once(&db).await;
    proxy.cut(Cut::Reset).await;
    proxy.resume();
    let answer = asking.await.unwrap().expect("an answer");
    assert_eq!(answer.status, 201, "{answer:?}");
    let stored: String =
        sqlx::query_scalar("select response_body from outboxd.receipt").fetch_one(&db.pool).await.unwrap();
    assert_eq!(answer.body, stored);
    assert_eq!(db.stored().await, (1, 1, 1));
}

#[tokio::test]
async fn a_statement_that_still_runs_when_its_connection_is_lost_is_waited_for() {
    let db = TestDb::new().await;
    let (api, proxy) = behind_a_proxy(&db, &[("api.lock_timeout", "5s")]).await;
    let mut lock = db.pool.begin().await.unwrap();
    sqlx::query("lock table outboxd.message in exclusive mode").execute(&mut *lock).await.unwrap();
    let (call, addr) = (api.post("k1", &message()), api.addr);
    let asking = tokio::spawn(async move { call.ask(addr).await });
    db.until_something_waits_for_a_lock().await;
    // PostgreSQL does not notice that nobody is there: the transaction goes on holding the reservation.
    proxy.cut(Cut::Close).await;
    db.until_waiting_for_locks(2).await;
    lock.rollback().await.unwrap();
    assert_eq!(asking.await.unwrap().expect("an answer").status, 201);
    assert_eq!(db.stored().await, (1, 1, 1), "the first one's, found by the second");
}

#[tokio::test]
async fn a_back_end_that_is_ended_before_its_commit_stores_nothing_and_the_second_ask_stores_it_once() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let mut lock = db.pool.begin().await.unwrap();
    sqlx::query("lock table outboxd.message in exclusive mode").execute(&mut *lock).await.unwrap();
    let (call, addr) = (api.post("k1", &message()), api.addr);
    let asking = tokio::spawn(async move { call.ask(addr).await });
    db.until_something_waits_for_a_lock().await;
    sqlx::query("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")
        .execute(&db.pool)
        .await
        .unwrap();
    lock.rollback().await.unwrap();
    let answer = asking.await.unwrap().expect("an answer");
    assert_eq!((answer.status, answer.replayed()), (201, false), "{answer:?}");
    assert_eq!(db.stored().await, (1, 1, 1));
}

#[tokio::test]
async fn what_cannot_be_settled_in_its_time_is_unconfirmed_and_never_anything_else() {
    let db = TestDb::new().await;
    let short = [("api.request_timeout", "1s"), ("api.statement_timeout", "1s"), ("api.lock_timeout", "500ms")];
    let (api, proxy) = behind_a_proxy(&db, &short).await;
    let mut lock = db.pool.begin().await.unwrap();
    sqlx::query("lock table outboxd.message in exclusive mode").execute(&mut *lock).await.unwrap();
    let (call, addr) = (api.post("k1", &message()), api.addr);
    let asking = tokio::spawn(async move { call.ask(addr).await });
    db.until_something_waits_for_a_lock().await;
    proxy.stall(Direction::ToClient);
    lock.rollback().await.unwrap();
    let answer = asking.await.unwrap().expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (503, "outcome_unconfirmed"));
    assert!(answer.header("retry-after").is_some());
    proxy.cut(Cut::Reset).await;
    proxy.resume();
    let settled = api.ask(&api.post("k1", &message())).await;
    assert_eq!((settled.status, settled.replayed()), (201, true), "only the same request tells");
    assert_eq!(db.stored().await, (1, 1, 1));
}

#[tokio::test]
async fn callers_who_find_every_connection_busy_are_told_to_come_back_and_lose_nothing() {
    let db = TestDb::new().await;
    let short = [
        ("api.request_timeout", "1500ms"),
        ("api.statement_timeout", "1500ms"),
        ("api.lock_timeout", "1500ms"),
        ("api.connections", "1"),
    ];
    let config = short.iter().fold(api_config(&db), |config, (key, value)| config.set(key, value));
    let api = Api::with(&db, &config).await;
    let mut lock = db.pool.begin().await.unwrap();
    sqlx::query("lock table outboxd.message in exclusive mode").execute(&mut *lock).await.unwrap();
    let (call, addr) = (api.post("k1", &message()), api.addr);
    let first = tokio::spawn(async move { call.ask(addr).await });
    db.until_something_waits_for_a_lock().await;
    let second = api.ask(&api.post("k2", &message())).await;
    for answer in [first.await.unwrap().expect("an answer"), second] {
        assert!(
            ["overloaded", "unavailable", "outcome_unconfirmed"].contains(&answer.problem().as_str()),
            "{answer:?}"
        );
        assert!(answer.header("retry-after").is_some());
    }
    lock.rollback().await.unwrap();
    assert_eq!(api.ask(&api.post("k1", &message())).await.status, 201);
    assert_eq!(api.ask(&api.post("k2", &message())).await.status, 201);
    assert_eq!(db.stored().await, (2, 2, 2));
}

#[tokio::test]
async fn a_database_whose_defaults_are_weaker_or_stricter_changes_nothing() {
    let db = TestDb::new().await;
    let name = db.url.rsplit('/').next().unwrap().to_owned();
    for (setting, value) in [
        ("synchronous_commit", "off"),
        ("default_transaction_isolation", "'repeatable read'"),
        ("default_transaction_read_only", "off"),
    ] {
        db.sql(&format!("alter database {name} set {setting} = {value}")).await.unwrap();
    }
    db.sql(
        "create table in_force (settings text);
         create function note() returns trigger language plpgsql as $$
         begin
             insert into in_force values (current_setting('synchronous_commit') || ', ' || current_setting('transaction_isolation'));
             return new;
         end $$;
         create trigger note before insert on outboxd.message for each row execute function note();",
    )
    .await
    .unwrap();
    let api = Api::start(&db).await;
    let calls: Vec<_> = (0..8).map(|_| api.post("k1", &message())).collect();
    let answers = at_once(api.addr, calls).await;
    assert!(answers.iter().all(|answer| answer.status == 201 && answer.body == answers[0].body), "{answers:#?}");
    let in_force: Vec<String> =
        sqlx::query_scalar("select distinct settings from in_force").fetch_all(&db.pool).await.unwrap();
    assert_eq!(in_force, ["on, read committed"]);
    assert_eq!(db.stored().await, (1, 1, 1));
}

#[tokio::test]
async fn behind_a_transaction_pooling_pgbouncer_the_promise_is_the_same() {
    let db = TestDb::new().await;
    let test = "behind_a_transaction_pooling_pgbouncer_the_promise_is_the_same";
    let Some((_bouncer, url)) = crate::wakeups::bouncer(test, &db).await else { return };
    let config = api_config(&db)
        .set("database.url", &url)
        .set("database.transaction_pooling", "true")
        .set("wakeup.enabled", "false")
        .set("api.connections", "3")
        .set("api.lock_timeout", "500ms");
    let api = Api::with(&db, &config).await;
    let calls: Vec<_> = (0..12).map(|_| api.post("k1", &message())).collect();
    let answers = at_once(api.addr, calls).await;
    assert!(answers.iter().all(|answer| answer.status == 201 && answer.body == answers[0].body), "{answers:#?}");
    assert_eq!(answers.iter().filter(|answer| !answer.replayed()).count(), 1);
    let mut changed = message();
    changed["subject"] = json!("Another");
    for _ in 0..4 {
        assert_eq!(api.ask(&api.post("k1", &changed)).await.problem(), "payload_mismatch");
    }
    let mut other = db.pool.begin().await.unwrap();
    sqlx::query("select outboxd.reserve('acme', 'messages.create', 'k2', '\\x01')").execute(&mut *other).await.unwrap();
    assert_eq!(api.ask(&api.post("k2", &message())).await.problem(), "in_progress");
    other.rollback().await.unwrap();
    assert_eq!(api.ask(&api.post("k2", &message())).await.status, 201);
    assert_eq!(db.stored().await, (2, 2, 2), "each is committed");
}

/// Asks all at once and gives every answer.
async fn at_once(addr: SocketAddr, calls: Vec<Call>) -> Vec<Answer> {
    // Connected first, so that they really are at once.
    let mut streams = Vec::new();
    for _ in &calls {
        streams.push(TcpStream::connect(addr).await.unwrap());
    }
    let asking: Vec<_> = calls
        .into_iter()
        .zip(streams)
        .map(|(call, mut stream)| {
            tokio::spawn(async move {
                tokio::io::AsyncWriteExt::write_all(&mut stream, &call.bytes()).await.unwrap();
                Answer::read(&mut stream).await.expect("an answer")
            })
        })
        .collect();
    let mut answers = Vec::new();
    for one in asking {
        answers.push(one.await.unwrap());
    }
    answers
}

#[tokio::test]
async fn sixty_four_at_once_store_one_message_two_hundred_times_over() {
    const ROUNDS: usize = 200;
    const AT_ONCE: usize = 64;
    let db = TestDb::new().await;
    let api = Api::with(&db, &api_config(&db).set("api.lock_timeout", "5s")).await;
    for round in 0..ROUNDS {
        let key = format!("round-{round}");
        let (same, mut changed) = (message(), message());
        changed["body_text"] = json!("It is on its way!");
        // In every second round, some of them say something else under the same key.
        let differs = |at: usize| round % 2 == 1 && at % 8 == 3;
        let calls = (0..AT_ONCE).map(|at| api.post(&key, if differs(at) { &changed } else { &same })).collect();
        let answers = at_once(api.addr, calls).await;
        let winner = answers.iter().position(|answer| answer.status == 201).expect("one of them wins");
        let fresh = answers.iter().filter(|answer| answer.status == 201 && !answer.replayed()).count();
        assert_eq!(fresh, 1, "round {round}");
        for (at, answer) in answers.iter().enumerate() {
            if differs(at) == differs(winner) {
                assert_eq!((answer.status, &answer.body), (201, &answers[winner].body), "round {round}, request {at}");
            } else {
                assert_eq!(
                    (answer.status, answer.problem().as_str()),
                    (422, "payload_mismatch"),
                    "round {round}, request {at}"
                );
            }
        }
    }
    let rounds = i64::try_from(ROUNDS).unwrap();
    assert_eq!(db.stored().await, (rounds, rounds, rounds));
}

/// How often a fault found its operation in which phase.
#[derive(Debug, Default)]
struct Hits {
    kills: u32,
    terminated: u32,
    stops: u32,
    /// Operations that were in a statement when a fault came, which had then been committed, or not.
    committed: u32,
    undone: u32,
}

/// Seeded; `OUTBOXD_TEST_SEED` repeats a run.
fn seed() -> u64 {
    std::env::var("OUTBOXD_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_rounds_of_crashes_leave_exactly_what_was_confirmed() {
    const ROUNDS: u32 = 300;
    const CALLERS: u32 = 4;
    let seed = seed();
    let mut chance = rand::rngs::StdRng::seed_from_u64(seed);
    let own = Cluster::start(&Options { durable: true, ..Options::default() }).unwrap();
    let db = TestDb::on(&own).await;
    let token = db.token("acme", &Scope::ALL).await.1;
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let config = api_config(&db).set("api.listen", &listen).set("api.connections", "4");
    let addr: SocketAddr = listen.parse().unwrap();
    let mut api = Api::as_holder_of(token.clone(), &config).await;

    let (round, over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    // Callers that retry until they know, as the contract says, each operation under its one key and body.
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (round, over, token) = (Arc::clone(&round), Arc::clone(&over), token.clone());
            tokio::spawn(async move {
                let mut confirmed: BTreeMap<String, String> = BTreeMap::new();
                let mut retries = 0u32;
                for number in 0u32.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = format!("{caller}-{number}");
                    let mut body = message();
                    body["subject"] = json!(format!("Order {key} of round {}", round.load(Ordering::Relaxed)));
                    let call = Call::new("POST /v1/messages")
                        .header("Authorization", &format!("Bearer {}", token.reveal()))
                        .header("Idempotency-Key", &key)
                        .json(&body);
                    loop {
                        match call.ask(addr).await {
                            Some(answer) if answer.status == 201 => {
                                confirmed.insert(key, answer.body);
                                break;
                            }
                            Some(answer) => {
                                let code = answer.problem();
                                let passing = ["overloaded", "unavailable", "outcome_unconfirmed", "in_progress"];
                                assert!(passing.contains(&code.as_str()), "{answer:?}");
                            }
                            None => {}
                        }
                        retries += 1;
                        // slow on purpose: a caller's pause between two tries
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
                (confirmed, retries)
            })
        })
        .collect();

    let mut hits = Hits::default();
    for number in 0..ROUNDS {
        round.store(number, Ordering::Relaxed);
        // slow on purpose: the moment of a fault is drawn, from within one statement's time to several
        tokio::time::sleep(Duration::from_micros(chance.random_range(0..12_000))).await;
        let before = receipts(&db).await;
        match number % 30 {
            29 => {
                own.stop_immediate().unwrap();
                own.restart().unwrap();
                hits.stops += 1;
            }
            14 => {
                api.proc.kill();
                api.proc.ended().await;
                api = Api::as_holder_of(token.clone(), &config).await;
                hits.kills += 1;
            }
            _ => {
                let running: Vec<(i32, String)> = sqlx::query_as(
                    "select pid, state from pg_stat_activity
                     where datname = current_database() and application_name = 'outboxd' and query like '%accept_message%'",
                )
                .fetch_all(&db.pool)
                .await
                .unwrap_or_default();
                for (pid, _) in &running {
                    // A server that is starting again has none of them.
                    let _ = sqlx::query("select pg_terminate_backend($1)").bind(pid).execute(&db.pool).await;
                    hits.terminated += 1;
                }
                let active = u32::try_from(running.iter().filter(|(_, state)| state == "active").count()).unwrap();
                let new = u32::try_from(receipts(&db).await.saturating_sub(before)).unwrap_or_default();
                hits.committed += new.min(active);
                hits.undone += active.saturating_sub(new);
            }
        }
    }
    over.store(true, Ordering::Relaxed);
    let mut confirmed = BTreeMap::new();
    let mut retries = 0;
    for caller in callers {
        let (theirs, tries) = caller.await.unwrap();
        confirmed.extend(theirs);
        retries += tries;
    }
    say(&format!("storm, seed {seed}: {} operations confirmed, {retries} retries, {hits:?}", confirmed.len()));

    let stored: Vec<(String, String, Value)> = sqlx::query_as(
        "select r.request_key, r.response_body,
            jsonb_build_object('messages', (select jsonb_agg(m.id) from outboxd.message m where m.request_key = r.request_key),
                'notifications', (select jsonb_agg(o.id order by o.id) from outboxd.outbox o join outboxd.delivery d on d.notification_id = o.id
                    where o.message_ref = (r.response_body::jsonb ->> 'message_id')))
         from outboxd.receipt r",
    )
    .fetch_all(&db.pool)
    .await
    .unwrap();
    let by_key: BTreeMap<&str, (&str, &Value)> =
        stored.iter().map(|(key, body, found)| (key.as_str(), (body.as_str(), found))).collect();
    for (key, body) in &confirmed {
        let (stored, found) =
            by_key.get(key.as_str()).unwrap_or_else(|| panic!("{key} was confirmed and is not there"));
        assert_eq!(stored, body, "{key}");
        let receipt: Value = serde_json::from_str(body).unwrap();
        assert_eq!(found["messages"], json!([receipt["message_id"]]), "{key}");
        assert_eq!(found["notifications"], receipt["notification_ids"], "{key}");
    }
    assert_eq!(by_key.len(), confirmed.len(), "every caller went on until it knew");
    let count = i64::try_from(confirmed.len()).unwrap();
    assert_eq!(db.stored().await, (count, count, count), "no receipt without a message, nor the other way round");
    assert!(hits.kills > 0 && hits.stops > 0 && hits.terminated > 0, "{hits:?}");
    assert!(hits.committed > 0 && hits.undone > 0, "a fault of each phase: {hits:?}");
}

async fn receipts(db: &TestDb) -> i64 {
    sqlx::query_scalar("select count(*) from outboxd.receipt").fetch_one(&db.pool).await.unwrap_or_default()
}
