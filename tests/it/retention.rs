//! What is kept for how long, what its end looks like, and what is never removed (docs/retention.md).

use std::time::Duration;

use outboxd::store::Line;
use outboxd::worker::retention::{Periods, Removed, clean};
use serde_json::json;

use crate::crashes::{in_state, server};
use crate::harness::api::{Api, api_config, message};
use crate::harness::rows::plain;
use crate::harness::{Config, PATIENCE, Proc, TestDb, eventually};

const DAY: Duration = Duration::from_secs(86_400);

fn periods() -> Periods {
    Periods { receipts: 30 * DAY, messages: 60 * DAY, notifications: 90 * DAY, attempts: 45 * DAY }
}

impl TestDb {
    /// Lets this much time pass for everything that is stored: ids keep their times, so they are made older, too.
    async fn pass(&self, days: u32) {
        self.sql(&format!(
            "begin; set local session_replication_role = replica;
             create or replace function pg_temp.older(id uuid) returns uuid language sql as $$
                 select (lpad(to_hex(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint - {days}::bigint * 86400000), 12, '0')
                     || right(replace(id::text, '-', ''), 20))::uuid $$;
             update outboxd.receipt set created_at = created_at - interval '{days} days',
                notification_ids = (select coalesce(array_agg(pg_temp.older(n)), '{{}}') from unnest(notification_ids) n);
             update outboxd.message set id = pg_temp.older(id), created_at = created_at - interval '{days} days',
                notification_ids = (select coalesce(array_agg(pg_temp.older(n)), '{{}}') from unnest(notification_ids) n);
             update outboxd.outbox set id = pg_temp.older(id), created_at = created_at - interval '{days} days';
             update outboxd.delivery set notification_id = pg_temp.older(notification_id), changed_at = changed_at - interval '{days} days';
             update outboxd.attempt set notification_id = pg_temp.older(notification_id);
             update outboxd.evidence set notification_id = pg_temp.older(notification_id);
             commit"
        ))
        .await
        .unwrap();
    }

    async fn make(&self, state: &str) {
        let columns = match state {
            "uncertain" => "doubt_since = now(), doubt_until = now(), doubt_scope = 'x', closes_at = now()",
            "unresolved" => "doubt_since = now(), doubt_until = now(), doubt_scope = 'x', closes_at = null",
            "failed" => {
                "reason = 'refused', doubt_since = null, doubt_until = null, doubt_scope = null, closes_at = null"
            }
            _ => "reason = null",
        };
        self.sql(&format!(
            "begin; set local session_replication_role = replica;
             update outboxd.delivery set state = '{state}', due_at = null, ready = false, {columns}; commit"
        ))
        .await
        .unwrap();
    }
}

async fn cleaned(db: &TestDb) -> Removed {
    let mut line: Line = db.line();
    clean(&mut line, &periods()).await.unwrap()
}

#[tokio::test]
async fn each_kind_goes_after_its_own_period_and_not_before() {
    let db = TestDb::new().await;
    let server = server([]).await;
    let config = Config::new(&db).set("api.listen", "127.0.0.1:0").provider("primary", server.addr());
    let token = db.token("acme", &outboxd::domain::token::Scope::ALL).await.1;
    let mut api = Api::running("run", token, &config).await;
    assert_eq!(api.ask(&api.post("k1", &message())).await.status, 201);
    eventually("it is sent", PATIENCE, async || {
        let sent: i64 = sqlx::query_scalar("select count(*) from outboxd.delivery where state = 'sent'")
            .fetch_one(&db.pool)
            .await
            .unwrap();
        if sent == 1 { Ok(()) } else { Err(sent) }
    })
    .await;
    api.proc.terminate();
    api.proc.ended().await;

    let none = Removed::default();
    db.pass(29).await;
    assert_eq!(cleaned(&db).await, none);
    db.pass(2).await;
    assert_eq!(cleaned(&db).await, Removed { receipts: 1, ..none });
    assert_eq!(db.stored().await, (0, 1, 1));
    db.pass(15).await;
    assert_eq!(cleaned(&db).await, Removed { attempts_of: 1, ..none });
    db.pass(15).await;
    assert_eq!(cleaned(&db).await, Removed { messages: 1, ..none });
    db.pass(30).await;
    assert_eq!(cleaned(&db).await, Removed { notifications: 1, ..none });
    for table in ["outbox", "delivery", "attempt", "evidence", "receipt", "message"] {
        let left: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("select count(*) from outboxd.{table}")))
            .fetch_one(&db.pool)
            .await
            .unwrap();
        assert_eq!(left, 0, "{table}");
    }
}

#[tokio::test]
async fn nothing_goes_while_a_notification_is_not_final() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    assert_eq!(api.ask(&api.post("k1", &message())).await.status, 201);
    db.pass(365).await;
    for state in ["pending", "uncertain", "unresolved"] {
        if state != "pending" {
            db.make(state).await;
        }
        assert_eq!(cleaned(&db).await, Removed::default(), "{state}");
    }
    db.make("failed").await;
    assert_eq!(cleaned(&db).await, Removed { receipts: 1, messages: 1, notifications: 1, attempts_of: 0 });
}

#[tokio::test]
async fn evidence_goes_with_its_notification_and_by_no_other_way() {
    let db = TestDb::new().await;
    let id = db.enqueue(&plain("acme")).await;
    db.make("sent").await;
    db.sql(&format!(
        "begin; set local session_replication_role = replica;
         insert into outboxd.attempt (notification_id, number, fence, worker, provider, dedup_scope, recovery_window, begun_at)
            values ('{id}', 1, 1, 'w', 'p', 'p', '1h', now());
         insert into outboxd.evidence (notification_id, attempt_number, kind, proves, source, recorded_by)
            values ('{id}', 1, 'statement', 'accepted', 's', 'me'); commit"
    ))
    .await
    .unwrap();
    for forbidden in [
        "delete from outboxd.evidence",
        "update outboxd.evidence set source = 'x'",
        "update outboxd.outbox set subject = 'x'",
    ] {
        assert!(db.sql(forbidden).await.is_err(), "{forbidden}");
    }
    db.pass(91).await;
    assert_eq!(cleaned(&db).await, Removed { notifications: 1, ..Removed::default() });
}

#[tokio::test]
async fn a_retry_prolongs_nothing() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let mut body = message();
    body["recipients"] = json!([]);
    let first = api.ask(&api.post("k1", &body)).await;
    db.pass(29).await;
    let replay = api.ask(&api.post("k1", &body)).await;
    assert_eq!((replay.replayed(), &replay.body), (true, &first.body), "a moment before the end: the same receipt");
    db.pass(2).await;
    assert_eq!(cleaned(&db).await.receipts, 1);
    let late = api.ask(&api.post("k1", &body)).await;
    assert_eq!((late.status, late.replayed()), (201, false), "after it: a new operation, as docs/retention.md says");
}

#[tokio::test]
async fn an_operation_in_progress_is_not_touched_whatever_the_receipt_before_it() {
    let db = TestDb::new().await;
    let mut other = db.pool.begin().await.unwrap();
    sqlx::query("select outboxd.reserve('acme', 'x', 'k1', '\\x01')").execute(&mut *other).await.unwrap();
    sqlx::query("update outboxd.receipt set created_at = now() - interval '1 year'")
        .execute(&mut *other)
        .await
        .unwrap();
    assert_eq!(cleaned(&db).await, Removed::default());
    sqlx::query("select outboxd.complete('acme', 'x', 'k1', 200, 'done')").execute(&mut *other).await.unwrap();
    assert_eq!(cleaned(&db).await, Removed::default());
    other.commit().await.unwrap();
    assert_eq!(db.stored().await.0, 1);
    assert_eq!(cleaned(&db).await.receipts, 1);
}

#[tokio::test]
async fn a_receipt_that_goes_between_the_conflict_and_the_read_leaves_one_operation() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let mut body = message();
    body["recipients"] = json!([]);
    let first = api.ask(&api.post("k1", &body)).await.json();
    // Retention holds the receipt's row as it deletes it. The INSERT meets the conflict and waits for it, whatever comes first.
    let mut retention = db.pool.begin().await.unwrap();
    sqlx::query("delete from outboxd.receipt").execute(&mut *retention).await.unwrap();
    let (call, addr) = (api.post("k1", &body), api.addr);
    let asking = tokio::spawn(async move { call.ask(addr).await });
    db.until_something_waits_for_a_lock().await;
    retention.commit().await.unwrap();
    let second = asking.await.unwrap().unwrap();
    assert_eq!((second.status, second.replayed()), (201, false), "{second:?}");
    assert_ne!(first["message_id"], second.json()["message_id"], "its receipt was gone: a new operation");
    assert_eq!(db.stored().await, (1, 2, 0));

    // And between the two statements of outboxd.reserve: the deletion that its first statement did not wait for commits, as
    // seen by its second. The loop reserves anew.
    db.sql(
        "create function vanish() returns trigger language plpgsql as $$
         begin
             if new.request_key = 'k2' and exists (select from outboxd.receipt where request_key = 'k2') then
                 -- What another session would do right after this statement's conflict.
                 perform set_config('test.vanish', 'on', true);
             end if;
             return new;
         end $$;
         create trigger vanish before insert on outboxd.receipt for each row execute function vanish();
         create function vanished() returns trigger language plpgsql as $$
         begin
             if current_setting('test.vanish', true) = 'on' then
                 perform set_config('test.vanish', 'off', true);
                 delete from outboxd.receipt where request_key = 'k2';
             end if;
             return null;
         end $$;
         create trigger vanished after insert on outboxd.receipt for each statement execute function vanished();",
    )
    .await
    .unwrap();
    assert_eq!(api.ask(&api.post("k2", &body)).await.status, 201);
    let again = api.ask(&api.post("k2", &body)).await;
    assert_eq!((again.status, again.replayed()), (201, false), "{again:?}");
    let receipts: i64 = sqlx::query_scalar("select count(*) from outboxd.receipt where request_key = 'k2'")
        .fetch_one(&db.pool)
        .await
        .unwrap();
    assert_eq!(receipts, 1);
}

#[tokio::test]
async fn a_worker_cleans_by_itself_and_the_command_does_it_once() {
    let db = TestDb::new().await;
    let server = server([]).await;
    let id = db.enqueue(&plain("acme")).await;
    let config = Config::new(&db).provider("primary", server.addr()).set("retention.every", "50ms");
    let _worker = Proc::start(&["worker"], &config.text());
    in_state(&db, id, "sent").await;
    db.pass(91).await;
    eventually("it is removed", PATIENCE, async || {
        let left = db.stored().await.2;
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;
    db.enqueue(&plain("acme")).await;
    let second = TestDb::new().await;
    second.enqueue(&plain("acme")).await;
    second.make("sent").await;
    second.pass(91).await;
    let mut command = Proc::start(&["clean", "--json"], &api_config(&second).text());
    assert_eq!(command.ended().await.code(), Some(0));
    assert_eq!(command.log().trim(), r#"{"receipts":0,"messages":0,"notifications":1,"attempts_of":0}"#);
}
