//! The operator's commands: what they show, what they decide, what they refuse, and that every decision is on record.

use outboxd::domain::ids::NotificationId;
use outboxd::domain::outcome::{Outcome, Phase};
use outboxd::domain::policy::Next;
use outboxd::sandbox::smtp::{Action, Rule, Stage};
use outboxd::store::settle::Settlement;
use serde_json::Value;

use crate::crashes::{deliveries, in_state, server};
use crate::harness::api::api_config;
use crate::harness::rows::{LONG, claim, holding, plain, ready, verdict};
use crate::harness::{Config, PATIENCE, Proc, TestDb, eventually};

/// Runs a command to its end: the exit code and what it printed.
async fn run(db: &TestDb, args: &[&str]) -> (Option<i32>, String) {
    let mut proc = Proc::start(args, &api_config(db).text());
    let code = proc.ended().await.code();
    (code, proc.log())
}

async fn json(db: &TestDb, args: &[&str]) -> Value {
    let (code, text) = run(db, &[args, &["--json"]].concat()).await;
    assert_eq!(code, Some(0), "{args:?}: {text}");
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{args:?}: {text}"))
}

/// A notification that may have been accepted, and is held.
async fn in_doubt(db: &TestDb) -> NotificationId {
    let mut line = db.line();
    let claimed = db.claimed(&mut line, &holding()).await;
    let id = claimed.id();
    line.begin(&[(id, claimed.fence())]).await.unwrap();
    let doubt =
        Settlement::new(claimed, verdict(Outcome::Uncertain, Phase::EndOfData), Next::Doubt { resend_after: None });
    line.settle(&[doubt], 96 * LONG).await.unwrap();
    assert_eq!(db.state(id).await, "uncertain");
    id
}

async fn decisions(db: &TestDb) -> Vec<(String, String, String)> {
    sqlx::query_as("select decided_by, action, reason from outboxd.decision order by id")
        .fetch_all(&db.pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_statement_settles_a_doubt_and_stays_on_record() {
    let db = TestDb::new().await;
    for (flags, after, proves) in [
        (vec!["--sent"], "sent", "accepted"),
        (vec!["--not-sent"], "pending", "not_accepted"),
        (vec!["--not-sent", "--give-up"], "failed", "not_accepted"),
    ] {
        let id = in_doubt(&db).await;
        let text = id.to_string();
        let args =
            [&["resolve", &text], &flags[..], &["--reason", "seen in the log", "--as", "ada", "--json"]].concat();
        let (code, said) = run(&db, &args).await;
        assert_eq!(code, Some(0), "{said}");
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&said["before"], &said["after"]), (&"uncertain".into(), &after.into()));
        let story = db.story(id).await;
        assert_eq!(story.notification.state, after);
        let [evidence] = &story.evidence[..] else { panic!("{story:#?}") };
        assert_eq!(
            (evidence.kind.as_str(), evidence.proves.as_str(), evidence.recorded_by.as_str()),
            ("statement", proves, "ada")
        );
        // Nothing is in doubt any more, so there is nothing to settle again.
        let (code, said) = run(&db, &args).await;
        assert_eq!(code, Some(3), "{said}");
        db.sql(&format!("update outboxd.delivery set state = 'cancelled', due_at = null, ready = false, reason = null where notification_id = '{id}' and state in ('pending', 'failed')")).await.unwrap();
    }
    let on_record = decisions(&db).await;
    assert_eq!(on_record.len(), 3, "what was refused decides nothing: {on_record:?}");
    assert_eq!(on_record[0], ("ada".to_owned(), "resolve sent".to_owned(), "seen in the log".to_owned()));
    let (before, after): (Value, Value) =
        sqlx::query_as("select before, after from outboxd.decision order by id limit 1")
            .fetch_one(&db.pool)
            .await
            .unwrap();
    assert_eq!((&before["state"], &after["state"]), (&"uncertain".into(), &"sent".into()));
}

#[tokio::test]
async fn a_decision_on_record_cannot_be_changed_or_removed() {
    let db = TestDb::new().await;
    run(&db, &["pause", "--all", "--reason", "deploy", "--as", "ada"]).await;
    for forbidden in
        ["update outboxd.decision set decided_by = 'eve'", "delete from outboxd.decision", "truncate outboxd.decision"]
    {
        assert!(db.sql(forbidden).await.is_err(), "{forbidden}");
    }
    assert_eq!(decisions(&db).await.len(), 1);
}

#[tokio::test]
async fn a_decided_resend_goes_out_once_more_and_says_that_a_duplicate_is_possible() {
    let db = TestDb::new().await;
    let lost = Rule::at(Stage::EndOfData, Action::Close.after_accepting()).once().label("lost");
    let server = server([lost]).await;
    let id = db.enqueue(&plain("acme")).await;
    let config = Config::new(&db).provider("primary", server.addr());
    let _worker = Proc::start(&["worker"], &config.text());
    in_state(&db, id, "uncertain").await;
    let text = id.to_string();
    let (code, said) = run(&db, &["resolve", &text, "--resend", "--reason", "harmless", "--as", "ada"]).await;
    assert_eq!(code, Some(0), "{said}");
    in_state(&db, id, "sent").await;
    let story = db.story(id).await;
    assert!(story.notification.duplicate_possible, "{story:#?}");
    assert_eq!((story.attempts.len(), deliveries(&server.mailbox(), id)), (2, 2));
    // Sent is sent: only a spelled-out duplicate goes out again.
    let (code, said) = run(&db, &["resolve", &text, "--resend", "--reason", "again", "--as", "ada"]).await;
    assert_eq!(code, Some(3));
    assert!(said.contains("--duplicate"), "{said}");
    let (code, _) =
        run(&db, &["resolve", &text, "--resend", "--duplicate", "--reason", "asked for", "--as", "ada"]).await;
    assert_eq!(code, Some(0));
    eventually("the duplicate is out", PATIENCE, async || {
        let count = deliveries(&server.mailbox(), id);
        if count == 3 { Ok(()) } else { Err(count) }
    })
    .await;
    assert_eq!(decisions(&db).await.len(), 2);
}

#[tokio::test]
async fn a_decided_resend_without_an_answer_is_uncertain_again_and_not_sent_by_itself() {
    let db = TestDb::new().await;
    let server = server([Rule::at(Stage::EndOfData, Action::Close.after_accepting()).label("lost")]).await;
    let id = db.enqueue(&plain("acme")).await;
    let config = Config::new(&db)
        .provider("primary", server.addr())
        .set("recovery.window", "1s")
        .set("recovery.clock_margin", "0s");
    let _worker = Proc::start(&["worker"], &config.text());
    in_state(&db, id, "unresolved").await;
    let (code, said) = run(&db, &["resolve", &id.to_string(), "--resend", "--reason", "harmless", "--as", "ada"]).await;
    assert_eq!(code, Some(0), "{said}");
    server.script().wait_fired("lost", 2).await;
    in_state(&db, id, "unresolved").await;
    let story = db.story(id).await;
    assert_eq!(story.attempts.len(), 2, "one decision, one sending: {story:#?}");
    assert_eq!(deliveries(&server.mailbox(), id), 2);
}

#[tokio::test]
async fn what_may_not_be_decided_is_refused_with_the_reason_and_changes_nothing() {
    let db = TestDb::new().await;
    let pending = db.enqueue(&plain("acme")).await.to_string();
    let nobody = "01a230e5-9f38-7878-abaa-63e052288578";
    for (args, code, word) in [
        (vec!["resolve", &pending, "--sent", "--reason", "x"], 3, "nothing to settle"),
        (vec!["resolve", &pending, "--resend", "--reason", "x"], 3, "failed, is uncertain or unresolved"),
        (vec!["resolve", nobody, "--sent", "--reason", "x"], 3, "no notification"),
        (vec!["cancel", nobody, "--reason", "x"], 3, "no notification"),
        (vec!["resolve", &pending, "--sent"], 2, "--reason"),
        (vec!["resolve", &pending, "--sent", "--reason", " "], 2, "--reason"),
        (vec!["resolve", &pending, "--reason", "x"], 2, "--sent"),
        (vec!["resolve", &pending, "--sent", "--resend", "--reason", "x"], 2, "cannot be used"),
        (vec!["pause", "--reason", "x"], 2, "--all"),
    ] {
        let (ended, said) = run(&db, &args).await;
        assert_eq!(ended, Some(code), "{args:?}: {said}");
        assert!(said.contains(word), "{args:?}: {said}");
    }
    assert_eq!((db.state(pending.parse().unwrap()).await.as_str(), decisions(&db).await.len()), ("pending", 0));
    let (code, _) = run(&db, &["cancel", &pending, "--reason", "asked for", "--as", "ada"]).await;
    assert_eq!((code, db.state(pending.parse().unwrap()).await.as_str()), (Some(0), "cancelled"));
    assert_eq!(run(&db, &["cancel", &pending, "--reason", "again"]).await.0, Some(3));
}

#[tokio::test]
async fn a_claimed_notification_is_its_workers() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let claimed = db.claimed(&mut line, &claim()).await;
    for args in [["cancel"].as_slice(), &["resolve", "--resend"]] {
        let id = claimed.id().to_string();
        let args = [&args[..1], &[id.as_str()], &args[1..], &["--reason", "x"]].concat();
        let (code, said) = run(&db, &args).await;
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains("a worker has it"), "{said}");
    }
}

#[tokio::test]
async fn nothing_of_what_is_paused_is_claimed_and_the_rest_goes_on() {
    let db = TestDb::new().await;
    let mut line = db.line();
    // More paused accounts than a claim takes, on both sides of the one that is not.
    for account in ["a1", "a2", "a3", "live", "z1", "z2"] {
        db.enqueue(&plain(account)).await;
        if account != "live" {
            assert_eq!(
                run(&db, &["pause", "--account", account, "--reason", "owes us", "--as", "ada"]).await.0,
                Some(0)
            );
        }
    }
    let claimed = ready(&mut line, &claim(), 1).await;
    let accounts: Vec<String> = sqlx::query_scalar("select account_id from outboxd.delivery where state = 'claimed'")
        .fetch_all(&db.pool)
        .await
        .unwrap();
    assert_eq!((claimed.len(), accounts), (1, vec!["live".to_owned()]), "paused accounts starve nobody");
    assert!(ready(&mut line, &claim(), 10).await.is_empty());

    run(&db, &["resume", "--account", "a1", "--reason", "paid", "--as", "ada"]).await;
    run(&db, &["pause", "--provider", "primary", "--reason", "down", "--as", "ada"]).await;
    assert!(ready(&mut line, &claim(), 10).await.is_empty(), "nothing for this provider");
    let mut backup = claim();
    backup.provider = "backup".to_owned();
    assert_eq!(ready(&mut line, &backup, 10).await.len(), 1, "another one is not paused");
    run(&db, &["resume", "--provider", "primary", "--reason", "up", "--as", "ada"]).await;
    run(&db, &["resume", "--account", "a2", "--reason", "paid", "--as", "ada"]).await;
    run(&db, &["pause", "--all", "--reason", "deploy", "--as", "ada"]).await;
    assert!(ready(&mut line, &claim(), 10).await.is_empty());
    let (_, again) = run(&db, &["pause", "--all", "--reason", "deploy", "--as", "ada"]).await;
    assert!(again.contains("already"), "{again}");
    run(&db, &["resume", "--all", "--reason", "done", "--as", "ada"]).await;
    assert_eq!(ready(&mut line, &claim(), 10).await.len(), 1);
    assert!(
        decisions(&db)
            .await
            .iter()
            .any(|(who, what, why)| (who.as_str(), what.as_str(), why.as_str()) == ("ada", "pause", "down"))
    );
}

#[tokio::test]
async fn lists_find_by_every_filter_and_turn_pages_by_the_last_id() {
    let db = TestDb::new().await;
    let mut ids = Vec::new();
    for account in ["acme", "acme", "other"] {
        ids.push(db.enqueue(&plain(account)).await.to_string());
    }
    let doubtful = in_doubt(&db).await.to_string();
    let found = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    };
    let all = json(&db, &["list"]).await;
    assert_eq!(all.as_array().unwrap().len(), 4);
    let page = found(&json(&db, &["list", "--limit", "2"]).await);
    let next = found(&json(&db, &["list", "--limit", "2", "--below", &page[1]]).await);
    assert_eq!([page, next].concat(), found(&all));
    // The first of acme was claimed for the doubt, the others wait.
    assert_eq!(found(&json(&db, &["list", "--state", "uncertain"]).await), std::slice::from_ref(&doubtful));
    assert_eq!(json(&db, &["list", "--state", "pending"]).await.as_array().unwrap().len(), 3);
    assert_eq!(found(&json(&db, &["list", "--account", "other"]).await), [ids[2].clone()]);
    for (filter, value, count) in [
        ("--provider", "primary", 1),
        ("--provider", "backup", 0),
        ("--recipient", "jo@example.net", 4),
        ("--recipient", "jo@example", 0),
        ("--route", "bulk", 0),
        ("--code", "550", 0),
        ("--text", "no such words", 0),
        ("--since", "1h", 4),
        ("--until", "1h", 0),
        ("--since", "2020-01-01T00:00:00Z", 4),
    ] {
        let rows = json(&db, &["list", filter, value]).await;
        assert_eq!(rows.as_array().unwrap().len(), count, "{filter} {value}");
    }
    assert_eq!(found(&json(&db, &["uncertain"]).await), std::slice::from_ref(&doubtful));
    let (_, table) = run(&db, &["uncertain"]).await;
    assert!(table.contains(&doubtful) && table.contains("held") && table.contains("h"), "{table}");
    let (code, said) = run(&db, &["list", "--state", "lost"]).await;
    assert_eq!(code, Some(2));
    assert!(said.contains("is not a state"), "{said}");
}

#[tokio::test]
async fn stats_count_and_watch_goes_on_until_it_is_told_to_stop() {
    let db = TestDb::new().await;
    db.enqueue(&plain("acme")).await;
    in_doubt(&db).await;
    run(&db, &["pause", "--account", "acme", "--reason", "owes us", "--as", "ada"]).await;
    let stats = json(&db, &["stats"]).await;
    assert_eq!(
        (&stats["states"]["pending"], &stats["states"]["uncertain"], &stats["states"]["sent"]),
        (&1.into(), &1.into(), &0.into())
    );
    assert_eq!((&stats["providers"][0]["name"], &stats["providers"][0]["uncertain"]), (&"primary".into(), &1.into()));
    assert_eq!(stats["pauses"][0]["name"], "acme");
    let mut watch = Proc::start(&["watch", "--every", "100ms", "--json"], &api_config(&db).text());
    eventually("it has looked three times", PATIENCE, async || {
        let lines = watch.log().lines().count();
        if lines >= 3 { Ok(()) } else { Err(lines) }
    })
    .await;
    watch.terminate();
    assert_eq!(watch.ended().await.code(), Some(0), "{}", watch.log());
}

#[tokio::test]
async fn the_doctor_finds_what_is_wrong_and_says_what_to_do() {
    let db = TestDb::new().await;
    let (code, healthy) = run(&db, &["doctor"]).await;
    // The tests' cluster is not durable, which is the one thing wrong with it.
    assert_eq!(code, Some(1), "{healthy}");
    assert!(healthy.contains("durability") && healthy.contains("fsync OFF"), "{healthy}");

    let mut line = db.line();
    let claimed = db.claimed(&mut line, &claim()).await;
    db.age(claimed.id(), "2 hours").await;
    let mut slow = plain("acme");
    slow.route = Some("bulk".to_owned());
    let slow = db.enqueue(&slow).await;
    db.age(slow, "2 hours").await;
    run(&db, &["pause", "--provider", "primary", "--reason", "down", "--as", "ada"]).await;
    let config =
        api_config(&db).set("mail.message_id_domain", "mail.example.org").set("provider.primary.host", "localhost");
    let mut doctor = Proc::start(&["doctor", "--json"], &config.text());
    doctor.ended().await;
    let findings: Value = serde_json::from_str(&doctor.log()).unwrap_or_else(|_| panic!("{}", doctor.log()));
    let level = |check: &str| {
        findings
            .as_array()
            .unwrap()
            .iter()
            .find(|finding| finding["check"] == check)
            .map(|finding| finding["level"].as_str().unwrap().to_owned())
    };
    for (check, expected) in [
        ("leases", "wrong"),
        ("route", "wrong"),
        ("pause", "look"),
        ("listener", "look"),
        ("schema", "ok"),
        ("clocks", "ok"),
        ("held transactions", "ok"),
        ("bloat", "ok"),
        ("unresolved", "ok"),
    ] {
        assert_eq!(level(check).as_deref(), Some(expected), "{check}: {findings:#}");
    }
}

#[tokio::test]
async fn a_paused_provider_is_passed_over_for_the_next_of_the_route() {
    let db = TestDb::new().await;
    let (primary, backup) = (server([]).await, server([]).await);
    let config = Config::new(&db)
        .set("route.default", "primary,backup")
        .provider("primary", primary.addr())
        .provider("backup", backup.addr());
    run(&db, &["pause", "--provider", "primary", "--reason", "it loses answers", "--as", "ada"]).await;
    let _worker = Proc::start(&["worker"], &config.text());
    let id = db.enqueue(&plain("acme")).await;
    in_state(&db, id, "sent").await;
    assert_eq!((primary.mailbox().count(), backup.mailbox().count()), (0, 1));
    run(&db, &["resume", "--provider", "primary", "--reason", "it answers", "--as", "ada"]).await;
    eventually("the preferred one is used again", PATIENCE, async || {
        let id = db.enqueue(&plain("acme")).await;
        in_state(&db, id, "sent").await;
        if primary.mailbox().count() > 0 { Ok(()) } else { Err(backup.mailbox().count()) }
    })
    .await;
}

#[tokio::test]
async fn the_story_goes_from_the_operation_to_the_last_decision() {
    let db = TestDb::new().await;
    let api = crate::harness::api::Api::start(&db).await;
    let stored = api.ask(&api.post("order-17", &crate::harness::api::message())).await.json();
    let (message, text) = (stored["message_id"].as_str().unwrap(), stored["notification_ids"][0].as_str().unwrap());
    let id: NotificationId = text.parse().unwrap();
    let mut line = db.line();
    let claimed = ready(&mut line, &holding(), 1).await.remove(0);
    line.begin(&[(id, claimed.fence())]).await.unwrap();
    let doubt =
        Settlement::new(claimed, verdict(Outcome::Uncertain, Phase::EndOfData), Next::Doubt { resend_after: None });
    line.settle(&[doubt], 96 * LONG).await.unwrap();
    let planned = json(&db, &["replay", "plan", "--include-risky", "--reason", "outage", "--as", "ada"]).await;
    let replay = planned["id"].as_str().unwrap();
    json(&db, &["replay", "run", replay, "--no-wait", "--reason", "outage over", "--as", "ada"]).await;
    run(&db, &["cancel", text, "--reason", "no longer true", "--as", "bob"]).await;

    let (code, told) = run(&db, &["show", text]).await;
    assert_eq!(code, Some(0), "{told}");
    let mut from = 0;
    for words in [
        "operation messages.create order-17: receipt 201",
        "stored",
        "attempt 1: claimed by w1 for primary",
        "attempt 1: begun",
        "attempt 1: uncertain at end_of_data",
        &format!("planned in replay {replay} by ada as risky (outage)"),
        &format!("replayed by replay {replay}"),
        "bob decided: cancel, pending to cancelled (no longer true)",
    ] {
        let at = told[from..].find(words).unwrap_or_else(|| panic!("{words:?} in its place in\n{told}"));
        from += at;
    }
    for args in [vec!["show", message], vec!["show", "--account", "acme", "--key", "order-17"]] {
        let stories = json(&db, &args).await;
        assert_eq!(stories[0]["notification"]["id"], text, "{stories}");
        assert_eq!(stories[0]["operation"]["request_key"], "order-17");
        assert_eq!(stories[0]["decisions"][0]["decided_by"], "bob");
        assert_eq!(stories[0]["replays"][0]["outcome"], "replayed");
    }
    let (code, said) = run(&db, &["show", "--account", "acme", "--key", "order-18"]).await;
    assert!(code == Some(1) && said.contains("never stored"), "{said}");
    assert_eq!(run(&db, &["show", "--key", "order-17"]).await.0, Some(2), "whose key?");
}

#[tokio::test]
async fn the_audit_tells_who_decided_what_and_why() {
    let db = TestDb::new().await;
    let id = in_doubt(&db).await.to_string();
    run(&db, &["pause", "--account", "acme", "--reason", "owes us", "--as", "ada"]).await;
    run(&db, &["resolve", &id, "--sent", "--reason", "=in the log", "--as", "bob"]).await;
    let all = json(&db, &["audit"]).await;
    let told: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|decision| (decision["decided_by"].as_str().unwrap(), decision["action"].as_str().unwrap()))
        .collect();
    assert_eq!(told, [("bob", "resolve sent"), ("ada", "pause")]);
    assert_eq!((&all[0]["before"]["state"], &all[0]["after"]["state"]), (&"uncertain".into(), &"sent".into()));
    for (args, count) in [
        (vec!["--as", "ada"], 1),
        (vec!["--as", "eve"], 0),
        (vec!["--action", "resolve"], 1),
        (vec!["--notification", &id], 1),
        (vec!["--since", "1h"], 2),
        (vec!["--until", "1h"], 0),
        (vec!["--limit", "1"], 1),
        (vec!["--below", "2"], 1),
    ] {
        assert_eq!(json(&db, &[&["audit"], &args[..]].concat()).await.as_array().unwrap().len(), count, "{args:?}");
    }
    let (code, csv) = run(&db, &["audit", "--csv", "--action", "resolve"]).await;
    assert_eq!(code, Some(0));
    assert!(csv.starts_with("\"number\",\"when\",\"who\","), "{csv}");
    let record = format!("\"bob\",\"resolve sent\",\"{id}\",\"uncertain\",\"sent\",\"'=in the log\"\r\n");
    assert!(csv.contains(&record), "{csv}");
}
