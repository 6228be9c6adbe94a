//! The rules that the database itself holds, whoever writes.

use outboxd::domain::state::{State, TRANSITIONS};

use outboxd::store::migrate;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, raw_sql};

use crate::harness::rows::plain;
use crate::harness::{TestDb, cluster};

/// The columns that a row in this state has, so that only the transition itself can be refused.
fn columns(state: State) -> &'static str {
    match state {
        State::Pending => "due_at = now()",
        State::Claimed | State::Transmitting => "lease_until = now(), worker = 'w'",
        State::Sent | State::Bounced | State::Cancelled => "due_at = null",
        State::Uncertain => "closes_at = now(), doubt_since = now(), doubt_until = now(), doubt_scope = 's'",
        State::Unresolved => "doubt_since = now(), doubt_until = now(), doubt_scope = 's'",
        State::Failed => "reason = 'refused'",
    }
}

fn become_state(state: State) -> String {
    let mut cleared =
        vec!["due_at", "lease_until", "worker", "closes_at", "doubt_since", "doubt_until", "doubt_scope", "reason"];
    let set = columns(state);
    cleared.retain(|column| !set.contains(&format!("{column} =")));
    let cleared: Vec<_> = cleared.iter().map(|column| format!("{column} = null")).collect();
    format!("update outboxd.delivery set state = '{state}', ready = false, {set}, {}", cleared.join(", "))
}

#[tokio::test]
async fn the_database_allows_exactly_the_transitions_that_the_code_lists() {
    let db = TestDb::new().await;
    db.enqueue(&plain("acme")).await;
    for from in State::ALL {
        for to in State::ALL.into_iter().filter(|&to| to != from) {
            db.sql("alter table outboxd.delivery disable trigger legal_transition").await.unwrap();
            db.sql(&become_state(from)).await.unwrap();
            db.sql("alter table outboxd.delivery enable trigger legal_transition").await.unwrap();
            let changed = db.sql(&become_state(to)).await;
            match (from.may_become(to), changed) {
                (true, Ok(1)) => {}
                (false, Err(error)) => {
                    assert!(error.to_string().contains("may not go from"), "{from} to {to}: {error}")
                }
                (legal, other) => {
                    panic!("{from} to {to} is {}legal and gave {other:?}", if legal { "" } else { "not " })
                }
            }
        }
    }
}

#[test]
fn the_documentation_lists_exactly_the_transitions_of_the_code() {
    let page = include_str!("../../docs/state-machine.md");
    let table = page.split("## Transitions").nth(1).unwrap().split("```").next().unwrap();
    let documented: Vec<String> =
        table.lines().filter(|line| line.starts_with("| ")).skip(2).map(str::to_owned).collect();
    let coded: Vec<String> =
        TRANSITIONS.iter().map(|(from, to, cause)| format!("| {from} | {to} | {cause} |")).collect();
    assert_eq!(documented, coded);
    let drawn: Vec<&str> =
        page.lines().filter(|line| line.contains(" --> ") && !line.contains("[*]")).map(str::trim).collect();
    let coded: Vec<String> = TRANSITIONS.iter().map(|(from, to, _)| format!("{from} --> {to}")).collect();
    assert_eq!(drawn, coded);
}

#[tokio::test]
async fn content_and_identity_never_change_once_stored() {
    let db = TestDb::new().await;
    db.enqueue(&plain("acme")).await;
    for column in
        ["subject = 'other'", "recipient = 'x@example.org'", "account_id = 'b'", "created_at = now()", "id = id"]
    {
        let refused = db.sql(&format!("update outboxd.outbox set {column}")).await.unwrap_err();
        assert!(refused.to_string().contains("is not allowed"), "{column}: {refused}");
    }
    for column in ["account_id = 'b'", "fence = -1", "first_due_at = now() + interval '1 s'"] {
        let refused = db.sql(&format!("update outboxd.delivery set {column}")).await.unwrap_err();
        assert!(refused.to_string().contains("may not go from"), "{column}: {refused}");
    }
}

#[tokio::test]
async fn failed_cannot_hide_a_doubt_even_for_a_person_with_psql() {
    let db = TestDb::new().await;
    db.enqueue(&plain("acme")).await;
    let refused = db
        .sql(
            "update outboxd.delivery set state = 'failed', reason = 'refused', due_at = null, ready = false,
             doubt_since = now(), doubt_until = now(), doubt_scope = 's'",
        )
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("delivery_failed_without_doubt"), "{refused}");
}

#[tokio::test]
async fn beginning_stays_a_heap_only_update() {
    let db = TestDb::new().await;
    let indexed: Vec<String> = sqlx::query_scalar(
        "select indexdef from pg_indexes where schemaname = 'outboxd' and tablename = 'delivery' and indexdef ~ '\\mstate\\M'",
    )
    .fetch_all(&db.pool)
    .await
    .unwrap();
    assert!(indexed.is_empty(), "an index that names `state` makes every begin rewrite every index: {indexed:?}");
}

/// An empty database of a role that may log in and nothing else, and its address as that role.
async fn owned() -> (PgConnection, String) {
    let name = cluster().create_database(None).await.unwrap();
    let url = cluster().url(&name);
    let mut superuser = PgConnection::connect(&url).await.unwrap();
    raw_sql(AssertSqlSafe(format!("create role {name} login; alter database {name} owner to {name}")))
        .execute(&mut superuser)
        .await
        .unwrap();
    let (_, host) = url.split_once('@').unwrap();
    (superuser, format!("postgres://{name}@{host}"))
}

#[tokio::test]
async fn the_owner_of_a_database_migrates_it_and_removes_without_being_a_superuser() {
    let (mut superuser, owner) = owned().await;
    let mut conn = PgConnection::connect(&owner).await.unwrap();
    migrate::migrate(&mut conn).await.unwrap();
    raw_sql(
        "select outboxd.enqueue('acme', 'shop@example.com', 'jo@example.net', 'x', body_text => 'x');
         update outboxd.delivery set state = 'cancelled', ready = false, due_at = null",
    )
    .execute(&mut conn)
    .await
    .unwrap();
    let refused = raw_sql("update outboxd.outbox set subject = 'y'").execute(&mut conn).await;
    assert!(refused.unwrap_err().to_string().contains("does not change"));
    // In one transaction with what follows: the rules hold again as soon as the function has ended.
    let refused = raw_sql(
        "begin;
         select outboxd.erase_notifications(array(select id from outboxd.outbox));
         update outboxd.outbox set subject = 'y'",
    )
    .execute(&mut conn)
    .await;
    assert!(refused.unwrap_err().to_string().contains("does not change"));
    raw_sql("rollback; select outboxd.remove_notifications(array(select id from outboxd.outbox))")
        .execute(&mut conn)
        .await
        .unwrap();
    let left: i64 = sqlx::query_scalar("select count(*) from outboxd.outbox").fetch_one(&mut superuser).await.unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_database_that_has_an_earlier_text_of_a_migration_goes_on() {
    let (mut superuser, owner) = owned().await;
    let mut conn = PgConnection::connect(&owner).await.unwrap();
    migrate::migrate(&mut conn).await.unwrap();
    let earlier = "c1560f3206f13ce4d00cb2c8b3ea8be728c389c1c74504675c6ba516048aa8ffad1d85c1507913b732d4ed6ee0ea6fad";
    let recorded = "update outboxd.migration set checksum = decode($1, 'hex') where version = 20261201000004";
    sqlx::query(recorded).bind(earlier).execute(&mut superuser).await.unwrap();
    migrate::migrate(&mut conn).await.unwrap();
    sqlx::query(recorded).bind("00").execute(&mut superuser).await.unwrap();
    let refused = migrate::migrate(&mut conn).await.unwrap_err().to_string();
    assert!(refused.contains("20261201000004"), "any other text is still refused: {refused}");
}

#[tokio::test]
async fn two_processes_that_migrate_at_once_do_it_once() {
    let name = cluster().create_database(None).await.unwrap();
    let url = cluster().url(&name);
    let one = async || {
        let mut conn = PgConnection::connect(&url).await.unwrap();
        migrate::migrate(&mut conn).await.unwrap();
        migrate::pending(&mut conn).await.unwrap()
    };
    assert_eq!(tokio::join!(one(), one(), one()), (0, 0, 0));
}

#[tokio::test]
async fn an_index_whose_building_was_interrupted_is_built_the_next_time() {
    let db = TestDb::new().await;
    // As a build leaves it that was interrupted.
    db.sql("update pg_index set indisvalid = false where indexrelid = 'outboxd.outbox_account'::regclass")
        .await
        .unwrap();
    db.sql("delete from outboxd.migration where version = 20261201000012").await.unwrap();
    let mut conn = db.pool.acquire().await.unwrap();
    migrate::migrate(&mut conn).await.unwrap();
    let valid: bool =
        sqlx::query_scalar("select indisvalid from pg_index where indexrelid = 'outboxd.outbox_account'::regclass")
            .fetch_one(&db.pool)
            .await
            .unwrap();
    assert!(valid);
}
