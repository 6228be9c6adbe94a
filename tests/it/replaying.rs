//! Replays: what a plan says is what happens, to the rows that were planned and to no other, whatever becomes of who runs it.

use std::time::Duration;

use outboxd::domain::ids::NotificationId;
use outboxd::domain::outcome::{Outcome, Phase};
use outboxd::domain::policy::{FailReason, Next};
use outboxd::sandbox::smtp::{Action, Dedup, Options, Rule, Script, SmtpServer, Stage};
use outboxd::store::claim::{Claim, What};
use outboxd::store::settle::Settlement;
use serde_json::{Value, json};

use crate::crashes::{count, enqueue_many};
use crate::harness::api::api_config;
use crate::harness::rows::{LONG, claim, holding, plain, ready, verdict};
use crate::harness::{Config, PATIENCE, Proc, TestDb, eventually, say};

/// Notifications in the drill; `OUTBOXD_DRILL_ROWS=50000` for the long one.
const DRILL_ROWS: u32 = 4_000;

async fn command(db: &TestDb, args: &[&str]) -> (Option<i32>, Value) {
    let args = [&["replay"], args, &["--json"]].concat();
    let mut proc = Proc::start(&args, &api_config(db).text());
    let code = proc.ended().await.code();
    let said = proc.log();
    (code, serde_json::from_str(&said).unwrap_or_else(|_| panic!("{args:?}: {code:?} {said}")))
}

async fn plan(db: &TestDb, args: &[&str]) -> (String, Value) {
    let (code, plan) = command(db, &[&["plan", "--reason", "after the outage", "--as", "ada"], args].concat()).await;
    assert_eq!(code, Some(0), "{plan}");
    (plan["id"].as_str().unwrap().to_owned(), plan)
}

async fn run(db: &TestDb, id: &str, args: &[&str]) -> (Option<i32>, Value) {
    command(db, &[&["run", id, "--rate", "10000", "--no-wait", "--reason", "go", "--as", "ada"], args].concat()).await
}

/// How many rows of each class a plan or a report tells, with why where it is not possible.
fn classes(told: &Value) -> Vec<(String, i64)> {
    let rows = told["classes"].as_array().unwrap();
    rows.iter()
        .map(|row| {
            let why = row["why"].as_str().map(|why| format!(" {why}")).unwrap_or_default();
            (format!("{}{why}", row["class"].as_str().unwrap()), row["rows"].as_i64().unwrap())
        })
        .collect()
}

/// A notification that was claimed on these terms and then ended so.
async fn ended(db: &TestDb, terms: &Claim, outcome: Outcome, next: Next) -> NotificationId {
    let mut line = db.line();
    let claimed = db.claimed(&mut line, terms).await;
    let id = claimed.id();
    if matches!(outcome, Outcome::Uncertain | Outcome::Sent) {
        line.begin(&[(id, claimed.fence())]).await.unwrap();
    }
    let phase = if outcome == Outcome::Uncertain { Phase::EndOfData } else { Phase::Rcpt };
    let phase = if outcome == Outcome::Sent { Phase::EndOfData } else { phase };
    line.settle(&[Settlement::new(claimed, verdict(outcome, phase), next)], 96 * LONG).await.unwrap();
    id
}

async fn failed(db: &TestDb) -> NotificationId {
    let id = ended(db, &holding(), Outcome::Refused, Next::Fail(FailReason::Refused)).await;
    assert_eq!(db.state(id).await, "failed");
    id
}

async fn held(db: &TestDb) -> NotificationId {
    ended(db, &holding(), Outcome::Uncertain, Next::Doubt { resend_after: None }).await
}

/// In doubt at a provider that deduplicates; nothing resends it by itself before long.
async fn within(db: &TestDb) -> NotificationId {
    ended(db, &claim(), Outcome::Uncertain, Next::Doubt { resend_after: Some(LONG / 2) }).await
}

#[tokio::test]
async fn a_plan_tells_what_would_happen_by_class_and_changes_nothing() {
    let db = TestDb::new().await;
    let safe = failed(&db).await;
    let invalid = failed(&db).await;
    db.sql(&format!("update outboxd.delivery set reason = 'invalid' where notification_id = '{invalid}'"))
        .await
        .unwrap();
    let expired = failed(&db).await;
    db.sql(&format!("update outboxd.delivery set expires_at = now() where notification_id = '{expired}'"))
        .await
        .unwrap();
    let erased = failed(&db).await;
    db.sql(&format!("select outboxd.erase_notifications(array['{erased}']::uuid[])")).await.unwrap();
    let disputed = failed(&db).await;
    db.sql(&format!("update outboxd.delivery set contradiction = true where notification_id = '{disputed}'"))
        .await
        .unwrap();
    within(&db).await;
    held(&db).await;
    // Under accept-duplicates there is a time to resend in, and nobody deduplicates.
    let mut accepting = claim();
    accepting.dedup_window = None;
    ended(&db, &accepting, Outcome::Uncertain, Next::Doubt { resend_after: Some(LONG / 2) }).await;
    let unresolved = held(&db).await;
    db.age(unresolved, "30 days").await;
    db.line().close_windows().await.unwrap();
    // What nothing can be replayed of is in no plan: sent, cancelled, waiting.
    ended(&db, &claim(), Outcome::Sent, Next::Sent).await;
    let cancelled = failed(&db).await;
    db.sql(&format!(
        "update outboxd.delivery set state = 'cancelled', reason = null where notification_id = '{cancelled}'"
    ))
    .await
    .unwrap();
    db.enqueue(&plain("acme")).await;

    let before: Vec<String> =
        sqlx::query_scalar("select d::text from outboxd.delivery d order by 1").fetch_all(&db.pool).await.unwrap();
    let (id, told) = plan(&db, &[]).await;
    assert_eq!(
        classes(&told),
        [
            ("safe".to_owned(), 2),
            ("within_window".to_owned(), 1),
            ("risky".to_owned(), 4),
            ("not_possible erased".to_owned(), 1),
            ("not_possible expired".to_owned(), 1),
        ]
    );
    assert_eq!(told["would_replay"], 3);
    let sample = &told["samples"].as_array().unwrap()[0];
    assert_eq!((&sample["class"], &sample["notification_id"]), (&"safe".into(), &safe.to_string().into()));
    let after: Vec<String> =
        sqlx::query_scalar("select d::text from outboxd.delivery d order by 1").fetch_all(&db.pool).await.unwrap();
    assert_eq!(before, after, "a plan changes nothing");

    let (_, risky) = plan(&db, &["--include-risky"]).await;
    assert_eq!(risky["would_replay"], 7);
    for (filter, rows) in [
        (["--account", "acme"], 3),
        (["--account", "other"], 0),
        (["--failed", "refused"], 1),
        (["--failed", "exhausted"], 0),
        (["--outcome", "uncertain"], 1),
        (["--phase", "rcpt"], 2),
        (["--failed", "invalid"], 1),
        (["--until", "1h"], 0),
        (["--since", "1h"], 3),
    ] {
        assert_eq!(plan(&db, &filter).await.1["would_replay"], rows, "{filter:?}");
    }
    let (code, shown) = command(&db, &["show", &id]).await;
    assert_eq!((code, &shown["replay"]["state"]), (Some(0), &"planned".into()));
    let (_, listed) = command(&db, &["list"]).await;
    assert_eq!(listed.as_array().unwrap().len(), 11);
}

#[tokio::test]
async fn a_run_does_what_was_planned_and_no_more() {
    let db = TestDb::new().await;
    let (safe, within, risky) = (failed(&db).await, within(&db).await, held(&db).await);
    let (id, _) = plan(&db, &[]).await;
    let later = failed(&db).await;
    let (code, report) = run(&db, &id, &[]).await;
    assert_eq!((code, &report["replay"]["state"]), (Some(0), &"done".into()), "{report}");
    assert_eq!(report["items"], json!({ "replayed": 2, "left_out": 1 }));
    assert_eq!(db.state(later).await, "failed", "it was not in the plan");
    assert_eq!(db.state(risky).await, "uncertain", "nobody asked for it");

    // The resend goes through its dedup scope only, the other through any; both are the replay's.
    let mut line = db.line();
    let [ready] = &ready(&mut line, &claim(), 9).await[..] else { panic!("one is ready") };
    assert_eq!(ready.id(), safe);
    let mut elsewhere = claim();
    elsewhere.terms.dedup_scope = "another".to_owned();
    assert!(line.claim(&elsewhere, What::Resends, 9, u64::MAX).await.unwrap().is_empty());
    let resends = line.claim(&claim(), What::Resends, 9, u64::MAX).await.unwrap();
    assert_eq!(resends.iter().map(|resend| resend.id()).collect::<Vec<_>>(), [within]);
    let named: Vec<(String, i32)> = sqlx::query_as(
        "select notification_id::text, number from outboxd.attempt where replay_id::text = $1 order by notification_id",
    )
    .bind(&id)
    .fetch_all(&db.pool)
    .await
    .unwrap();
    assert_eq!(named, [(safe.to_string(), 2), (within.to_string(), 2)]);
    let (code, again) = run(&db, &id, &[]).await;
    assert_eq!((code, &again["replay"]["state"]), (Some(3), &"done".into()), "what is done is not run again");
    assert!(!db.story(within).await.notification.duplicate_possible);
}

#[tokio::test]
async fn what_is_risky_is_sent_again_only_when_asked_for_and_says_so() {
    let db = TestDb::new().await;
    let risky = held(&db).await;
    let (id, _) = plan(&db, &["--include-risky"]).await;
    assert_eq!(run(&db, &id, &[]).await.1["items"], json!({ "replayed": 1 }));
    let story = db.story(risky).await;
    assert_eq!(story.notification.state, "pending");
    assert!(story.notification.duplicate_possible);
    // Nothing takes the decision back, as it would a resend of its own whose time is over.
    let mut line = db.line();
    line.recall_resends().await.unwrap();
    let resends = line.claim(&holding(), What::Resends, 9, u64::MAX).await.unwrap();
    assert_eq!(resends.len(), 1);
    let fenced = (risky, resends[0].fence());
    assert!(line.begin(&[fenced]).await.unwrap().contains(&fenced));
}

#[tokio::test]
async fn what_has_changed_since_it_was_planned_is_left_alone() {
    let db = TestDb::new().await;
    let settled = within(&db).await;
    let cancelled = failed(&db).await;
    let removed = failed(&db).await;
    let tried = failed(&db).await;
    let too_late = within(&db).await;
    let expired = failed(&db).await;
    let (id, told) = plan(&db, &[]).await;
    assert_eq!(told["would_replay"], 6);
    for args in [vec!["resolve", &settled.to_string(), "--sent"], vec!["cancel", &cancelled.to_string()]] {
        let mut proc = Proc::start(&[&args[..], &["--reason", "seen"]].concat(), &api_config(&db).text());
        assert_eq!(proc.ended().await.code(), Some(0), "{}", proc.log());
    }
    db.sql(&format!("select outboxd.remove_notifications(array['{removed}']::uuid[])")).await.unwrap();
    // Somebody tried it meanwhile, and it failed again.
    db.sql(&format!("update outboxd.delivery set fence = fence + 1 where notification_id = '{tried}'")).await.unwrap();
    db.age(too_late, "2 hours").await;
    db.sql(&format!("update outboxd.delivery set expires_at = now() where notification_id = '{expired}'"))
        .await
        .unwrap();
    let (code, report) = run(&db, &id, &[]).await;
    // What retention removed is in no plan any more.
    assert_eq!((code, &report["items"]), (Some(0), &json!({ "changed": 3, "expired": 2 })), "{report}");
    for (id, state) in
        [(settled, "sent"), (cancelled, "cancelled"), (tried, "failed"), (too_late, "uncertain"), (expired, "failed")]
    {
        assert_eq!(db.state(id).await, state);
    }
}

#[tokio::test]
async fn a_row_that_someone_holds_is_waited_for_and_holds_up_no_other() {
    let db = TestDb::new().await;
    let (first, second) = (failed(&db).await, failed(&db).await);
    let (id, _) = plan(&db, &[]).await;
    let mut holder = db.pool.begin().await.unwrap();
    sqlx::query("select from outboxd.delivery where notification_id = $1 for update")
        .bind(first.0)
        .execute(&mut *holder)
        .await
        .unwrap();
    let args = ["replay", "run", &id, "--rate", "1000", "--no-wait", "--reason", "go"];
    let mut runner = Proc::start(&args, &api_config(&db).text());
    eventually("the other is replayed", PATIENCE, async || match db.state(second).await {
        state if state == "pending" => Ok(()),
        state => Err(state),
    })
    .await;
    assert_eq!(db.state(first).await, "failed");
    holder.rollback().await.unwrap();
    assert_eq!(runner.ended().await.code(), Some(0), "{}", runner.log());
    assert_eq!(db.state(first).await, "pending");
}

/// A replay of this many, run slowly, of which some are done.
async fn running(db: &TestDb, rows: usize) -> (String, Proc) {
    for _ in 0..rows {
        failed(db).await;
    }
    let (id, _) = plan(db, &[]).await;
    let runner = slow(db, &id);
    done_beyond(db, &id, 2).await;
    (id, runner)
}

fn slow(db: &TestDb, id: &str) -> Proc {
    Proc::start(
        &["replay", "run", id, "--rate", "20/s", "--no-wait", "--reason", "go", "--as", "ada"],
        &api_config(db).text(),
    )
}

async fn done(db: &TestDb, id: &str) -> i64 {
    sqlx::query_scalar("select count(done_at) from outboxd.replay_item where replay_id::text = $1")
        .bind(id)
        .fetch_one(&db.pool)
        .await
        .unwrap()
}

async fn done_beyond(db: &TestDb, id: &str, rows: i64) {
    eventually(&format!("more than {rows} are done"), PATIENCE, async || match done(db, id).await {
        done if done > rows => Ok(()),
        done => Err(done),
    })
    .await;
}

#[tokio::test]
async fn a_replay_is_paused_run_on_and_cancelled_and_every_step_is_on_record() {
    let db = TestDb::new().await;
    let (id, mut runner) = running(&db, 40).await;
    let (code, elsewhere) = run(&db, &id, &[]).await;
    assert_eq!(code, Some(3), "one process at a time runs it: {elsewhere}");
    assert_eq!(command(&db, &["pause", &id, "--reason", "too fast", "--as", "bob"]).await.0, Some(0));
    assert_eq!(runner.ended().await.code(), Some(3), "{}", runner.log());
    assert!(runner.log().contains("it was paused by someone else"), "{}", runner.log());
    let at_pause = done(&db, &id).await;
    assert!(at_pause < 40);
    assert_eq!(command(&db, &["pause", &id, "--reason", "again"]).await.0, Some(3), "what is paused cannot be paused");
    assert_eq!(done(&db, &id).await, at_pause);
    let mut runner = slow(&db, &id);
    done_beyond(&db, &id, at_pause).await;
    assert_eq!(command(&db, &["cancel", &id, "--reason", "enough", "--as", "bob"]).await.0, Some(0));
    assert_eq!(runner.ended().await.code(), Some(3), "{}", runner.log());
    assert_eq!(run(&db, &id, &[]).await.0, Some(3), "what is cancelled is not run");
    let (_, report) = command(&db, &["show", &id]).await;
    let open = report["items"]["open"].as_i64().unwrap();
    assert_eq!(open + report["items"]["replayed"].as_i64().unwrap(), 40);
    assert!(open > 0, "{report}");
    let decisions: Vec<(String, String, String)> = sqlx::query_as(
        "select decided_by, action, after->>'state' from outboxd.decision where replay_id::text = $1 order by id",
    )
    .bind(&id)
    .fetch_all(&db.pool)
    .await
    .unwrap();
    let told: Vec<_> =
        decisions.iter().map(|(who, what, state)| (who.as_str(), what.as_str(), state.as_str())).collect();
    assert_eq!(
        told,
        [
            ("ada", "replay plan", "planned"),
            ("ada", "replay run", "running"),
            ("bob", "replay pause", "paused"),
            ("ada", "replay run", "running"),
            ("bob", "replay cancel", "cancelled"),
        ]
    );
    let (code, unknown) = command(&db, &["show", "01a230e5-9f38-7878-abaa-63e052288578"]).await;
    assert_eq!((code, &unknown["done"]), (Some(3), &false.into()));
}

#[tokio::test]
async fn a_runner_that_is_told_to_stop_pauses_it() {
    let db = TestDb::new().await;
    let (id, mut runner) = running(&db, 40).await;
    runner.terminate();
    assert_eq!(runner.ended().await.code(), Some(1), "{}", runner.log());
    assert_eq!(command(&db, &["show", &id]).await.1["replay"]["state"], "paused");
    let (code, report) = run(&db, &id, &[]).await;
    assert_eq!((code, &report["items"]), (Some(0), &json!({ "replayed": 40 })));
}

#[tokio::test]
async fn a_runner_that_was_killed_is_gone_on_for_where_it_was() {
    let db = TestDb::new().await;
    let (id, mut runner) = running(&db, 40).await;
    runner.kill();
    runner.ended().await;
    let mut show = Proc::start(&["replay", "show", &id], &api_config(&db).text());
    eventually("its session has ended", PATIENCE, async || {
        let sessions: i64 = sqlx::query_scalar("select count(*) from pg_locks where locktype = 'advisory'")
            .fetch_one(&db.pool)
            .await
            .unwrap();
        if sessions == 0 { Ok(()) } else { Err(sessions) }
    })
    .await;
    show.ended().await;
    assert!(done(&db, &id).await < 40);
    let (code, report) = run(&db, &id, &[]).await;
    assert_eq!((code, &report["items"]), (Some(0), &json!({ "replayed": 40 })));
    let tries: i64 = sqlx::query_scalar("select count(*) from outboxd.delivery where state = 'pending'")
        .fetch_one(&db.pool)
        .await
        .unwrap();
    assert_eq!(tries, 40);
}

#[tokio::test]
async fn a_runner_whose_connection_is_cut_goes_on_with_a_new_one() {
    let db = TestDb::new().await;
    let (id, mut runner) = running(&db, 40).await;
    let cut = db
        .sql("select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())")
        .await
        .unwrap();
    assert_eq!(cut, 1);
    assert_eq!(runner.ended().await.code(), Some(0), "{}", runner.log());
    assert_eq!(command(&db, &["show", &id]).await.1["items"], json!({ "replayed": 40 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_replayed_without_a_loss_or_a_duplicate() {
    let rows: u32 = std::env::var("OUTBOXD_DRILL_ROWS").map_or(DRILL_ROWS, |rows| rows.parse().unwrap());
    let patience = PATIENCE.max(Duration::from_secs(u64::from(rows / 50)));
    let db = TestDb::new().await;
    let refuse = || Rule::at(Stage::EndOfData, Action::reply("554 5.6.0 not now, not ever")).label("refused");
    let dedup = Dedup { header: "X-Notification-ID".to_owned(), window: 24 * LONG };
    let options = Options { script: Script::new([refuse()]), dedup: Some(dedup), ..Options::default() };
    let server = SmtpServer::start(options).await.unwrap();
    let config = Config::new(&db)
        .set("provider_defaults.connections", "16")
        .set("provider_defaults.breaker.threshold", "1000000")
        .set("recovery.window", "24h")
        .set("recovery.on_uncertain", "resend-within-window")
        .set("retry.max_tries", "1")
        .set("provider.primary.dedup.header", "X-Notification-ID")
        .set("provider.primary.dedup.window", "24h")
        .provider("primary", server.addr());
    enqueue_many(&db, rows).await;
    let _worker = Proc::start(&["worker"], &config.text());

    // It refuses the first half, answers every other one of the rest, and recovers.
    eventually("half of them are refused", patience, async || match count(&db, "failed").await {
        failed if failed >= i64::from(rows / 2) => Ok(()),
        failed => Err(failed),
    })
    .await;
    server.script().replace(
        Script::new([Rule::at(Stage::EndOfData, Action::Close.after_accepting()).probability(0.5).label("lost")])
            .seeded(7),
    );
    eventually("all of them were tried", patience, async || {
        let waiting = count(&db, "pending").await + count(&db, "claimed").await + count(&db, "transmitting").await;
        if waiting == 0 { Ok(()) } else { Err(waiting) }
    })
    .await;
    server.script().clear();
    let (failed, uncertain) = (count(&db, "failed").await, count(&db, "uncertain").await);
    let accepted = server.mailbox().count();
    assert!(
        failed >= i64::from(rows / 2) && uncertain > i64::from(rows / 10),
        "{failed} failed, {uncertain} uncertain"
    );

    let (id, told) = plan(&db, &["--provider", "primary"]).await;
    assert_eq!(classes(&told), [("safe".to_owned(), failed), ("within_window".to_owned(), uncertain)]);
    let rate = (rows / 8).to_string();
    let start = || {
        Proc::start(&["replay", "run", &id, "--rate", &rate, "--reason", "it answers again", "--json"], &config.text())
    };
    for part in 1..=2 {
        let mut runner = start();
        done_beyond(&db, &id, (failed + uncertain) * part / 3).await;
        runner.kill();
        runner.ended().await;
    }
    let mut runner = start();
    let ended = eventually("the replay has ended", patience, async || {
        let report = command(&db, &["show", &id]).await.1;
        if report["replay"]["state"] == "done" && report["states"]["sent"] == failed + uncertain {
            Ok(report)
        } else {
            Err(report)
        }
    })
    .await;
    assert_eq!(runner.ended().await.code(), Some(0), "{}", runner.log());
    let report: Value = serde_json::from_str(&runner.log()).unwrap_or_else(|_| panic!("{}", runner.log()));
    assert_eq!(report["states"], ended["states"], "the runner waits for the end and tells it");

    let mailbox = server.mailbox();
    assert_eq!(mailbox.duplicates(), std::collections::BTreeMap::new());
    assert_eq!((mailbox.count(), mailbox.ids().len()), (rows as usize, rows as usize), "every one, once");
    assert!(mailbox.altered().is_empty(), "the same bytes");
    assert_eq!(count(&db, "sent").await, i64::from(rows));
    // The report's numbers are the server's.
    let replayed = report["attempts"]["sent"].as_i64().unwrap();
    let taken = i64::try_from(mailbox.count() - accepted).unwrap() + i64::try_from(mailbox.deduplicated()).unwrap();
    assert_eq!((replayed, taken), (failed + uncertain, failed + uncertain), "{report}");
    assert_eq!(i64::try_from(mailbox.deduplicated()).unwrap(), uncertain, "what was taken before is not taken again");
    say(&format!(
        "drill: {rows} rows, {failed} refused, {uncertain} answers lost; replayed {replayed}, killed twice; mailbox {}, 0 twice, 0 lost",
        mailbox.count()
    ));
}

#[tokio::test]
async fn what_failed_against_the_evidence_is_sent_again_by_decision_and_not_called_sent_without_it() {
    let db = TestDb::new().await;
    let mut line = db.line();
    for by_plan in [true, false] {
        let id = failed(&db).await;
        db.sql(&format!(
            "update outboxd.attempt set begun_at = claimed_at where notification_id = '{id}';
             insert into outboxd.evidence (notification_id, attempt_number, kind, proves, source, recorded_by)
             values ('{id}', 1, 'provider_event', 'accepted', 'test', 'test');
             update outboxd.delivery set contradiction = true where notification_id = '{id}'"
        ))
        .await
        .unwrap();
        if by_plan {
            let (replay, told) = plan(&db, &["--include-risky"]).await;
            assert_eq!(classes(&told), [("risky".to_owned(), 1)]);
            assert_eq!(run(&db, &replay, &[]).await.1["items"], json!({ "replayed": 1 }));
        } else {
            let args = ["resolve", &id.to_string(), "--resend", "--reason", "harmless"];
            let mut resolve = Proc::start(&args, &api_config(&db).text());
            assert_eq!(resolve.ended().await.code(), Some(0), "{}", resolve.log());
        }
        let claimed = ready(&mut line, &claim(), 1).await.remove(0);
        let retry = Next::Retry { delay: Duration::from_secs(3_600), counted: false, suspected: false };
        line.settle(&[Settlement::new(claimed, verdict(Outcome::NotSent, Phase::Connect), retry)], 96 * LONG)
            .await
            .unwrap();
        let story = db.story(id).await;
        assert_eq!((story.notification.state.as_str(), story.notification.duplicate_possible), ("pending", true));
        db.sql(&format!("update outboxd.delivery set state = 'cancelled', due_at = null, ready = false where notification_id = '{id}'"))
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_dedup_window_that_is_over_is_not_within_although_duplicates_are_accepted_for_longer() {
    let db = TestDb::new().await;
    let mut accepting = claim();
    accepting.dedup_window = Some(Duration::from_secs(600));
    accepting.terms.resend_room = Some(23 * LONG);
    let id = ended(&db, &accepting, Outcome::Uncertain, Next::Doubt { resend_after: Some(LONG) }).await;
    assert_eq!(
        classes(&plan(&db, &[]).await.1),
        [("risky".to_owned(), 1)],
        "the hour of margin does not fit into ten minutes"
    );
    db.sql("update outboxd.attempt set dedup_window = interval '2 hours'").await.unwrap();
    assert_eq!(classes(&plan(&db, &[]).await.1), [("within_window".to_owned(), 1)]);
    db.age(id, "90 minutes").await;
    assert_eq!(classes(&plan(&db, &[]).await.1), [("risky".to_owned(), 1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_on_one_replay_keep_each_others_record() {
    let db = TestDb::new().await;
    enqueue_many(&db, 3_000).await;
    db.sql("update outboxd.delivery set state = 'failed', reason = 'refused', due_at = null, ready = false")
        .await
        .unwrap();
    let (id, _) = plan(&db, &[]).await;
    let id: uuid::Uuid = id.parse().unwrap();
    let decider = outboxd::store::decide::Decider { who: "ada", reason: "go" };
    outboxd::store::replay::start(&mut db.pool.acquire().await.unwrap(), id, 1_000.0, &decider).await.unwrap();
    let runners = (0..2).map(|_| {
        let pool = db.pool.clone();
        tokio::spawn(async move {
            let (mut conn, mut above) = (pool.acquire().await.unwrap(), uuid::Uuid::nil());
            while let Some(last) = outboxd::store::replay::step(&mut conn, id, above, 20).await.unwrap().last {
                above = last;
            }
        })
    });
    for runner in runners.collect::<Vec<_>>() {
        runner.await.unwrap();
    }
    let report = outboxd::store::replay::report(&mut db.pool.acquire().await.unwrap(), id).await.unwrap().unwrap();
    assert_eq!(report.items.get("changed"), None, "{:?}", report.items);
    assert_eq!(report.items["replayed"], count(&db, "pending").await);
}
