//! What the documents promise, held against the real thing.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use outboxd::domain::address::{ADDRESS_MAX_OCTETS, LOCAL_PART_MAX_OCTETS};
use outboxd::domain::content::limits;
use outboxd::domain::outcome::{Outcome, Phase};
use outboxd::domain::policy::Next;
use outboxd::store::enqueue::NewNotification;
use outboxd::store::settle::Settlement;

use crate::harness::rows::{LONG, holding, plain, ready, verdict};
use crate::harness::{Proc, TestDb};

const PRODUCERS: &str = include_str!("../../docs/producers.md");
const README: &str = include_str!("../../README.md");

/// The blocks of code in `text` that are marked as `language`.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let opening = format!("```{language}\n");
    text.split(&opening).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// The rows of the table of parameters, cell by cell, without the backticks.
fn documented_parameters() -> Vec<Vec<String>> {
    let (_, table) = PRODUCERS.split_once("| parameter |").expect("the table of parameters");
    table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect())
        .collect()
}

#[tokio::test]
async fn the_documented_parameters_are_those_of_the_function_and_of_the_rust_form() {
    let db = TestDb::new().await;
    let real: Vec<(String, String, Option<String>)> = sqlx::query_as(
        "select proargnames[n], format_type(proargtypes[n - 1], null), pg_get_function_arg_default(oid, n)
         from pg_proc, generate_series(1, pronargs) n where oid = 'outboxd.enqueue'::regproc order by n",
    )
    .fetch_all(&db.pool)
    .await
    .unwrap();
    let real: Vec<Vec<String>> = real
        .into_iter()
        .map(|(name, kind, default)| {
            let default = default.map(|default| default.split("::").next().unwrap().trim_matches('\'').to_owned());
            let default = default.map(|default| if default == "NULL" { "null".to_owned() } else { default });
            vec![
                name,
                kind.replace("timestamp with time zone", "timestamptz"),
                default.unwrap_or("required".to_owned()),
            ]
        })
        .collect();
    let documented = documented_parameters();
    assert_eq!(documented.iter().map(|row| row[..3].to_vec()).collect::<Vec<_>>(), real);

    let rust = serde_json::to_value(NewNotification::default()).unwrap();
    let fields: BTreeSet<&str> = rust.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, real.iter().map(|row| row[0].as_str()).collect());
}

#[test]
fn the_documented_limits_are_the_ones_in_force() {
    let parameters = documented_parameters();
    for (name, limit) in [
        ("sender", ADDRESS_MAX_OCTETS),
        ("recipient", LOCAL_PART_MAX_OCTETS),
        ("subject", limits::SUBJECT_MAX_OCTETS),
        ("body_text", limits::BODY_MAX_OCTETS),
        ("body_html", limits::BODY_MAX_OCTETS),
        ("sender_name", limits::NAME_MAX_OCTETS),
        ("recipient_name", limits::NAME_MAX_OCTETS),
        ("headers", limits::HEADERS_MAX_COUNT),
        ("headers", limits::HEADER_NAME_MAX_OCTETS),
        // Without the colon and the space.
        ("headers", limits::HEADER_MAX_OCTETS - 2),
        ("attachments", limits::ATTACHMENTS_MAX_COUNT),
        ("attachments", limits::ATTACHMENTS_MAX_OCTETS),
        ("list_unsubscribe", limits::LIST_UNSUBSCRIBE_MAX_OCTETS),
    ] {
        let row = parameters.iter().find(|row| row[0] == name).expect("the parameter");
        let numbers: Vec<usize> = row[3].split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        assert!(numbers.contains(&limit), "{name}: {limit} is not in {:?}", row[3]);
    }
}

#[tokio::test]
async fn the_sql_for_producers_does_what_it_says_and_the_rights_suffice() {
    let db = TestDb::new().await;
    let [order, rights] = &blocks(PRODUCERS, "sql")[..] else { panic!("two blocks of SQL") };
    db.sql(order).await.unwrap();
    let keys: Vec<String> =
        sqlx::query_scalar("select dedup_key from outboxd.outbox join shop_order on dedup_key = 'order-' || shop_order.id || '-confirmation'")
            .fetch_all(&db.pool)
            .await
            .unwrap();
    assert_eq!(keys, ["order-17-confirmation"]);

    // A role belongs to the whole cluster, so it needs a name of its own.
    let role = format!("shop_{}", std::process::id());
    db.sql(&rights.replace("shop;", &format!("{role};"))).await.unwrap();
    let mut conn = db.pool.acquire().await.unwrap();
    sqlx::query(sqlx::AssertSqlSafe(format!("set role {role}"))).execute(&mut *conn).await.unwrap();
    let new = NewNotification { dedup_key: Some("mine".to_owned()), ..plain("acme") };
    let id = outboxd::enqueue(&mut conn, &new).await.unwrap();
    assert_eq!(outboxd::enqueue(&mut conn, &new).await.unwrap(), id);
    for forbidden in [
        "select subject from outboxd.outbox",
        "update outboxd.delivery set state = 'sent'",
        "delete from outboxd.outbox",
    ] {
        let refused = sqlx::query(forbidden).execute(&mut *conn).await.unwrap_err();
        let code = refused.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned());
        assert_eq!(code.as_deref(), Some("42501"), "{forbidden}");
    }
    sqlx::query("reset role").execute(&mut *conn).await.unwrap();
    db.sql(&format!("drop owned by {role}; drop role {role}")).await.unwrap();
}

#[tokio::test]
async fn the_sql_for_an_api_of_ones_own_stores_one_order_however_often_it_runs() {
    let db = TestDb::new().await;
    let [order] = &blocks(include_str!("../../docs/own-api.md"), "sql")[..] else { panic!("one block of SQL") };
    for _ in 0..3 {
        db.sql(order).await.unwrap();
    }
    let (orders, mails, receipts): (i64, i64, i64) = sqlx::query_as(
        "select (select count(*) from own_order),
            (select count(*) from outboxd.outbox join own_order o on message_ref = o.id::text),
            (select count(*) from outboxd.receipt where response_status = 201 and cardinality(notification_ids) = 1)",
    )
    .fetch_one(&db.pool)
    .await
    .unwrap();
    assert_eq!((orders, mails, receipts), (1, 1, 1));
    let changed = order.replace("1 item: a chair", "1 item: a table");
    let refused = db.sql(&changed).await.unwrap_err();
    assert_eq!(refused.as_database_error().and_then(|error| error.code()).as_deref(), Some("OB003"));
    // The pool's connection is in a transaction that failed.
    let db = TestDb::new().await;
    let forgotten = "begin; select outboxd.reserve('acme', 'orders.create', 'k2', '\\x01'); commit";
    let refused = db.sql(forgotten).await.unwrap_err();
    assert_eq!(refused.as_database_error().and_then(|error| error.code()).as_deref(), Some("OB004"), "{refused}");
}

#[test]
fn the_periods_and_bounds_that_the_pages_tell_are_the_defaults() {
    let defaults = include_str!("../../config/default.toml");
    let default = |section: &str, key: &str| {
        let section = defaults.split(&format!("[{section}]")).nth(1).unwrap().split("\n[").next().unwrap();
        let line = section.lines().find(|line| line.starts_with(&format!("{key} ="))).unwrap();
        line.split('=').nth(1).unwrap().trim().trim_matches('"').to_owned()
    };
    let retention = include_str!("../../docs/retention.md");
    for key in ["receipts", "messages", "notifications", "attempts"] {
        let days = default("retention", key).replace('d', " days");
        assert!(retention.contains(&format!("`retention.{key}` | {days} |")), "{key}: {days}");
    }
    let api = include_str!("../../docs/api.md");
    for (key, told) in [
        ("in_flight", "256"),
        ("account_in_flight", "128"),
        ("body_max_bytes", "24 MiB"),
        ("request_timeout", "10 s"),
        ("lock_timeout", "2 s"),
        ("statement_timeout", "5 s"),
        ("connections", "16"),
    ] {
        assert!(api.contains(&format!("`api.{key}` | {told} |")), "{key}");
        let value = match default("api", key).as_str() {
            "25165824" => "24 MiB".to_owned(),
            value => value.replace('s', " s"),
        };
        assert_eq!(value, told, "{key}");
    }
    assert_eq!((default("client", "window").as_str(), default("api", "key_window").as_str()), ("7d", "24h"));
}

#[tokio::test]
async fn the_readmes_sql_runs_and_finds_what_waits_for_a_person() {
    let db = TestDb::new().await;
    let [enqueue, waiting] = &blocks(README, "sql")[..] else { panic!("two blocks of SQL") };
    db.sql(enqueue).await.unwrap();
    let ask = || sqlx::query(sqlx::AssertSqlSafe(waiting.clone())).fetch_all(&db.pool);
    assert!(ask().await.unwrap().is_empty());

    let mut line = db.line();
    let claimed = ready(&mut line, &holding(), 1).await.remove(0);
    line.begin(&[(claimed.id(), claimed.fence())]).await.unwrap();
    let doubt =
        Settlement::new(claimed, verdict(Outcome::Uncertain, Phase::EndOfData), Next::Doubt { resend_after: None });
    line.settle(&[doubt], 96 * LONG).await.unwrap();
    assert_eq!(ask().await.unwrap().len(), 1);
}

#[test]
fn every_link_from_one_document_to_a_file_leads_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["", "docs", "docs/decisions"].map(|folder| root.join(folder));
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
    let mut links = 0;
    for file in files.filter(|file| file.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(&file).unwrap();
        for rest in text.split("](").skip(1) {
            let target = rest.split([')', '#']).next().unwrap();
            if !target.is_empty() && !target.contains("://") {
                links += 1;
                assert!(file.parent().unwrap().join(target).exists(), "{}: {target}", file.display());
            }
        }
    }
    assert!(links > 10);
}

#[tokio::test]
async fn the_readmes_configuration_is_usable() {
    let [config] = &blocks(README, "toml")[..] else { panic!("one block of TOML") };
    let mut check = Proc::start(&["config", "check"], config);
    let ended = check.ended().await;
    assert!(ended.success() && check.log().contains("the configuration is usable"), "{}", check.log());
}

#[test]
fn every_command_of_the_documents_is_one_that_the_program_takes() {
    use clap::Parser as _;

    let mut checked = 0;
    let mut pages = vec![("README.md".into(), README.to_owned())];
    for entry in fs::read_dir("docs").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
    for (page, text) in pages {
        let console = blocks(&text, "console");
        let shell = blocks(&text, "sh");
        let lines = console.iter().flat_map(|block| block.lines()).filter_map(|line| line.trim().strip_prefix("$ "));
        let shell = shell.iter().map(|block| block.replace("\\\n", " ")).collect::<Vec<_>>();
        let commands = lines
            .map(str::to_owned)
            .chain(shell.iter().flat_map(|block| block.lines()).map(|line| line.trim().to_owned()));
        for command in commands.filter(|command| command.starts_with("outboxd ")) {
            // What stands for an id is one.
            let words = words(&command).into_iter().map(|word| match word.as_str() {
                "ID" | "$id" => "01a230e5-9f38-7878-abaa-63e052288578".to_owned(),
                _ => word,
            });
            if let Err(error) = outboxd::cli::Cli::try_parse_from(words) {
                assert!(!error.use_stderr(), "{page}: {command}\n{error}");
            }
            checked += 1;
        }
    }
    assert!(checked > 35, "{checked} commands were found");
}

/// The words of a command line of a document: quotes hold words together, a comment or a redirection ends it.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for letter in command.chars().chain([' ']) {
        match (quote, letter) {
            (Some(open), close) if open == close => quote = None,
            (None, '"' | '\'') => quote = Some(letter),
            (None, ' ') => words.extend((!word.is_empty()).then(|| std::mem::take(&mut word))),
            _ => word.push(letter),
        }
    }
    words.into_iter().take_while(|word| !matches!(word.as_str(), "#" | ">" | "<" | "|" | "&" | ">>")).collect()
}
