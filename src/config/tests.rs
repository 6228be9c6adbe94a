mod providers;

use crate::mail::compose::Identity;
use std::collections::BTreeMap;

use secrecy::ExposeSecret as _;

use super::*;
use crate::mail::endpoint::Security;

/// The least that a configuration file must say where `DATABASE_URL` is set.
const LEAST: &str = r#"
    mail.message_id_domain = "example.com"
    [provider.primary]
    host = "smtp.example.com"
"#;

/// `text` after [`LEAST`]; its bare keys belong to `[provider.primary]`.
fn with(text: &str) -> Sources {
    raw(&format!("{LEAST}\n{text}"))
}

fn raw(text: &str) -> Sources {
    let file = Some(("outboxd.toml".into(), text.to_owned()));
    let sources = Sources { file, env: BTreeMap::new(), host_name: "mx1".to_owned() };
    set(sources, "DATABASE_URL", "postgres://app:hunter2@db/outbox")
}

fn set(mut sources: Sources, name: &str, value: &str) -> Sources {
    sources.env.insert(name.to_owned(), value.to_owned());
    sources
}

fn loaded(sources: &Sources) -> Loaded {
    load(sources, Purpose::Send).unwrap_or_else(|invalid| panic!("{invalid}"))
}

fn problems(sources: &Sources) -> Vec<String> {
    load(sources, Purpose::Send).expect_err("the configuration must be refused").problems
}

/// Asserts that `sources` has one problem, and that it names every one of `words`.
#[track_caller]
fn refused(sources: &Sources, words: &[&str]) {
    let problems = problems(sources);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    for word in words {
        assert!(problems[0].contains(word), "{word} is not in: {}", problems[0]);
    }
}

#[test]
fn the_defaults_need_only_a_database_a_domain_and_a_provider() {
    let Loaded { settings, warnings, .. } = loaded(&with(""));
    assert_eq!(warnings, [""; 0]);
    let primary = &settings.providers["primary"];
    assert_eq!(
        (primary.endpoint.security, primary.endpoint.port, primary.endpoint.hello.as_str()),
        (Security::ImplicitTls, 465, "example.com")
    );
    assert!(primary.endpoint.auth.is_none() && primary.rate.is_none());
    assert_eq!(primary.recovery.resend_room, None);
    assert_eq!(settings.lease.renew_every, Some(Duration::from_secs(20)));
    assert_eq!(settings.routes["default"], ["primary"]);
    assert_eq!(settings.worker.name, "mx1");
    assert_eq!(settings.ops_listen.unwrap().port(), 9464);
}

#[test]
fn without_any_source_everything_that_is_missing_is_said_at_once() {
    let problems = problems(&Sources::default());
    for (problem, key) in problems.iter().zip(["database.url", "mail.message_id_domain", "route.default"]) {
        assert!(problem.contains(key), "{problem}");
    }
    assert_eq!(problems.len(), 3, "{problems:#?}");
}

#[test]
fn all_problems_of_all_kinds_are_reported_together_and_name_their_keys() {
    let text = r#"
        port = 99999
        pasword = "hunter2"
        rate_per_second = -1
        timeouts.gretting = "5m"
        [lease]
        duration = "sixty seconds"
        [worker]
        claim_max = 0
        [nonsense]
        [ops]
        listen = "localhost:9464"
        [log]
        level = "inof"
    "#;
    let problems = problems(&with(text));
    let keys = [
        "provider.primary.port",
        "provider.primary.pasword",
        "provider.primary.rate_per_second",
        "provider.primary.timeouts.gretting",
        "lease.duration",
        "worker.claim_max",
        "nonsense",
        "ops.listen",
        "log.level",
    ];
    for key in keys {
        assert_eq!(problems.iter().filter(|problem| problem.contains(key)).count(), 1, "{key}: {problems:#?}");
    }
    assert_eq!(problems.len(), keys.len(), "{problems:#?}");
    assert!(!problems.concat().contains("hunter2"));
}

#[test]
fn a_file_overrides_the_defaults_and_the_environment_overrides_the_file() {
    let sources = with("connections = 3\n[route]\nbulk = [\"primary\"]\n[lease]\nduration = \"90s\"");
    let sources = set(sources, "OUTBOXD__LEASE__DURATION", "2m");
    let sources = set(sources, "OUTBOXD__PROVIDER__PRIMARY__RATE_PER_SECOND", "2.5");
    let sources = set(sources, "OUTBOXD__DATABASE__TRANSACTION_POOLING", "true");
    let sources = set(sources, "OUTBOXD__WAKEUP__ENABLED", "false");
    let sources = set(sources, "OUTBOXD__WORKER__CLAIM_MAX", "7");
    let Loaded { settings, entries, .. } = loaded(&sources);
    assert_eq!(settings.lease.duration, Duration::from_secs(120));
    assert_eq!(settings.providers["primary"].connections, 3);
    assert_eq!(settings.providers["primary"].rate.unwrap().per_second, 2.5);
    assert!(settings.database.transaction_pooling && settings.wakeup.is_none());
    assert_eq!(settings.worker.claim_max, 7);
    let origin = |key: &str| entries.iter().find(|entry| entry.key == key).unwrap().origin.clone();
    assert_eq!(origin("lease.duration"), "OUTBOXD__LEASE__DURATION");
    assert_eq!(origin("provider.primary.connections"), "outboxd.toml");
    assert_eq!(origin("provider.primary.burst"), "default");
}

#[test]
fn a_shorter_list_replaces_a_longer_one_and_the_environment_separates_by_commas() {
    let file = "[provider.b]\nhost = \"b.example\"\n[route]\ndefault = [\"primary\", \"b\"]";
    assert_eq!(loaded(&with(file)).settings.routes["default"], ["primary", "b"]);
    let one = set(with(file), "OUTBOXD__ROUTE__DEFAULT", "b");
    assert_eq!(loaded(&one).settings.routes["default"], ["b"]);
    let two = set(with(file), "OUTBOXD__ROUTE__DEFAULT", "b, primary");
    assert_eq!(loaded(&two).settings.routes["default"], ["b", "primary"]);
}

#[test]
fn a_mistyped_variable_is_named_as_it_was_written() {
    let sources = set(with(""), "OUTBOXD__LEASE__DURATON", "2m");
    refused(&sources, &["lease.duraton", "OUTBOXD__LEASE__DURATON", "duration, renew_every"]);
}

#[test]
fn other_variables_are_none_of_our_business() {
    loaded(&set(set(with(""), "OUTBOXD_CONFIG", "x"), "OUTBOXD_TEST__LEASE__X", "1"));
}

#[test]
fn the_database_url_falls_back_to_database_url_from_the_environment() {
    let fallback = loaded(&with(""));
    assert!(fallback.settings.database.url.expose_secret().contains("app:hunter2"));
    assert!(fallback.entries.iter().any(|e| e.key == "database.url" && e.origin == "DATABASE_URL"));
    let own = loaded(&with("[database]\nurl = \"postgresql://own/db\""));
    assert_eq!(own.settings.database.url.expose_secret(), "postgresql://own/db");
    refused(&set(with(""), "DATABASE_URL", "mysql://hunter2@x"), &["database.url", "postgres://"]);
    refused(&set(with(""), "DATABASE_URL", ""), &["database.url", "DATABASE_URL"]);
}

#[test]
fn a_section_given_as_a_value_is_refused_without_showing_it() {
    let sources = set(with(""), "OUTBOXD__PROVIDER__PRIMARY", "hunter2");
    assert!(problems(&sources)[0].contains("provider.primary"));
    assert!(!problems(&sources).concat().contains("hunter2"));
}

#[test]
fn a_file_that_does_not_parse_is_named_with_the_line_and_never_quoted() {
    for broken in [
        "[provider.primary]\npassword = hunter2",
        "[provider.primary]\npassword = \"hunter2",
        "password = \"x\" hunter2",
        "hunter2",
        "a = 1\na = \"hunter2\"",
        "password = '''\nhunter2\n",
    ] {
        let problems = problems(&raw(broken));
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("outboxd.toml") && problems[0].contains("line"), "{}", problems[0]);
        assert!(!problems[0].contains("hunter2"), "{}", problems[0]);
    }
}

#[test]
fn secrets_show_in_no_debug_output_and_in_no_entry() {
    let text =
        "username = \"app\"\npassword = \"hunter2\"\n[database]\nlisten_url = \"postgres://app:hunter2@direct/outbox\"";
    let sources = set(with(text), "OUTBOXD__DATABASE__URL", "postgres://app:hunter2@db/outbox");
    let loaded = loaded(&sources);
    assert!(!format!("{sources:?} {loaded:?}").contains("hunter2"));
    let redacted = loaded.entries.iter().filter(|entry| entry.value == REDACTED).count();
    assert_eq!(redacted, 3);
}

#[test]
fn a_secret_of_the_wrong_kind_is_not_shown() {
    let problems = problems(&with("username = \"app\"\npassword = 271828"));
    assert!(problems[0].contains("provider.primary.password") && !problems.concat().contains("271828"), "{problems:?}");
}

#[test]
fn a_lease_outlasts_three_renewals() {
    let text = "[lease]\nduration = \"60s\"\nrenew_every = \"21s\"";
    refused(&with(text), &["lease.duration", "lease.renew_every"]);
    loaded(&with("[lease]\nduration = \"60s\"\nrenew_every = \"20s\""));
}

#[test]
fn without_renewal_a_lease_outlasts_a_whole_attempt_at_every_provider() {
    let whole = loaded(&with("")).settings.providers["primary"].attempt_max();
    let text = |lease: Duration| format!("[lease]\nrenew_every = \"0s\"\nduration = \"{}s\"", lease.as_secs());
    refused(&with(&text(whole)), &["lease.renew_every", "lease.duration", "provider.primary"]);
    loaded(&with(&text(whole + Duration::from_secs(1))));
    let two = format!("[provider.b]\nhost = \"b.example\"\nsend_deadline = \"3h\"\n{}", text(whole * 2));
    refused(&with(&two), &["lease.duration", "provider.b"]);
}

#[test]
fn a_slow_renewal_must_not_lose_the_lease() {
    let text = "[database]\nstatement_timeout = \"41s\"";
    refused(&with(text), &["database.statement_timeout", "lease.duration"]);
}

#[test]
fn a_transaction_pooler_needs_a_direct_address_to_listen_or_none() {
    let pooled = "[database]\ntransaction_pooling = true";
    refused(&with(pooled), &["database.transaction_pooling", "database.listen_url", "wakeup.enabled"]);
    let direct = with(&format!("{pooled}\nlisten_url = \"postgres://direct/db\""));
    assert_eq!(loaded(&direct).settings.wakeup.unwrap().url.expose_secret(), "postgres://direct/db");
    assert!(loaded(&with(&format!("{pooled}\n[wakeup]\nenabled = false"))).settings.wakeup.is_none());
}

#[test]
fn durations_that_contradict_each_other_are_refused() {
    let cases: [(&str, [&str; 2]); 7] = [
        ("[worker]\npoll_interval = \"61s\"", ["worker.poll_interval", "lease.duration"]),
        ("[maintenance]\nevery = \"61s\"", ["maintenance.every", "lease.duration"]),
        ("[retry]\nbase = \"2h\"", ["retry.base", "retry.cap"]),
        ("[retry]\ncap = \"5d\"", ["retry.cap", "retry.deadline"]),
        ("[retry]\nstated_delay_cap = \"5d\"", ["retry.stated_delay_cap", "retry.deadline"]),
        ("[database]\nlock_timeout = \"16s\"", ["database.lock_timeout", "database.statement_timeout"]),
        ("breaker.open_min = \"6m\"", ["provider.primary.breaker.open_min", "provider.primary.breaker.open_max"]),
    ];
    for (text, words) in cases {
        refused(&with(text), &words);
    }
}

#[test]
fn durations_have_a_unit_are_not_nought_and_end_within_a_year() {
    for value in ["\"0s\"", "\"30\"", "30", "\"-3s\"", "\"400d\"", "true", "\"\""] {
        refused(&with(&format!("[settle]\npatience = {value}")), &["settle.patience"]);
    }
    assert!(loaded(&with("[worker]\ngrace = \"0s\"")).settings.worker.grace.is_zero(), "no grace is a choice");
}

#[test]
fn numbers_are_positive_and_fit() {
    for key in ["connections", "messages_per_connection", "burst", "breaker.threshold", "port"] {
        for value in ["0", "-1", "1.5", "\"many\"", "5000000000"] {
            refused(&with(&format!("{key} = {value}")), &[&format!("provider.primary.{key}")]);
        }
    }
    for value in ["-1", "nan", "inf", "2000000"] {
        refused(&with(&format!("rate_per_second = {value}")), &["provider.primary.rate_per_second"]);
    }
    refused(&with("[retry]\nmax_tries = 70000"), &["retry.max_tries", "65535"]);
}

#[test]
fn the_domain_of_message_ids_is_a_domain() {
    for wrong in ["", "localhost", "example.com>", "a@example.com", "-a.example", "ex ample.com", "example..com"] {
        let text = LEAST.replace("\"example.com\"", &format!("{wrong:?}"));
        refused(&raw(&text), &["mail.message_id_domain"]);
    }
    let idn = loaded(&raw(&LEAST.replace("\"example.com\"", "\"bücher.example\""))).settings;
    assert_eq!(idn.providers["primary"].identity, Identity::new("xn--bcher-kva.example", None).unwrap());
}

#[test]
fn the_name_in_ehlo_is_a_domain_or_an_address_in_brackets() {
    let hello = |name: &str| raw(&format!("mail.hello = \"{name}\"\n{LEAST}"));
    for name in ["[192.0.2.1]", "mx1.example.com"] {
        assert_eq!(loaded(&hello(name)).settings.providers["primary"].endpoint.hello, name);
    }
    for name in ["mx1 example", "[a b]", "mx1"] {
        refused(&hello(name), &["mail.hello", "mail.message_id_domain"]);
    }
}

#[test]
fn a_restarted_worker_is_never_taken_for_its_predecessor() {
    let worker = loaded(&with("[worker]\nname = \"w\"")).settings.worker;
    assert_ne!(worker.new_identity(), worker.new_identity());
    assert!(worker.new_identity().starts_with("w-"));
}

#[test]
fn every_key_in_the_reference_is_explained() {
    let reference = include_str!("../../config/default.toml");
    let lines: Vec<&str> = reference.lines().collect();
    for (number, line) in lines.iter().enumerate().filter(|(_, line)| line.contains(" = ") && !line.starts_with('#')) {
        let block = lines[..number].iter().rev().take_while(|line| !line.is_empty());
        // A section's keys may share one comment at the section's head.
        assert!(block.into_iter().any(|line| line.starts_with('#')) || lines[number - 1].starts_with('['), "{line}");
    }
}

#[test]
fn without_a_provider_the_api_can_be_served_and_nothing_sent() {
    let api_only = |text: &str| load(&raw(text), Purpose::Other);
    assert!(api_only("").is_ok());
    assert!(api_only("[mail]\nmessage_id_domain = \"example.com\"").is_ok());
    let half = api_only("[provider.primary]\nhost = \"smtp.example.com\"").unwrap_err();
    assert!(half.problems[0].contains("mail.message_id_domain"), "what is there is checked: {half}");
    assert!(load(&raw(""), Purpose::Send).is_err());
}

#[test]
fn the_api_and_retention_are_checked_against_each_other() {
    let secret = format!("key_secret = {:?}", "s".repeat(32));
    let keys = |text: &str| with(&format!("[api]\nissued_keys = \"optional\"\n{text}"));
    let issued = loaded(&keys(&secret)).settings.api.issued_keys.unwrap();
    assert_eq!((issued.required, issued.window), (false, Duration::from_secs(86_400)));
    assert!(loaded(&with("")).settings.api.issued_keys.is_none());
    refused(&keys(""), &["api.issued_keys", "api.key_secret_file"]);
    refused(&keys("key_secret = \"short\""), &["api.key_secret", "32"]);
    refused(&keys(&format!("{secret}\nkey_secret_file = \"/nowhere\"")), &["api.key_secret", "api.key_secret_file"]);
    refused(&keys("key_secret_file = \"/nowhere\""), &["api.key_secret_file", "/nowhere"]);
    refused(&keys(&format!("{secret}\nkey_window = \"30d\"")), &["retention.receipts", "api.key_window"]);
    refused(&with("[retention]\nattempts = \"91d\""), &["retention.attempts", "retention.notifications"]);
    refused(&with("[api]\nlock_timeout = \"6s\""), &["api.lock_timeout", "api.statement_timeout"]);
    refused(&with("[api]\nstatement_timeout = \"11s\""), &["api.statement_timeout", "api.request_timeout"]);
    refused(&with("[api]\naccount_in_flight = 257"), &["api.account_in_flight", "api.in_flight"]);
    refused(&with("[api]\nlisten = \"everywhere\""), &["api.listen", "everywhere"]);
}

#[test]
fn the_secret_of_issued_keys_is_shown_nowhere() {
    let loaded = loaded(&with(&format!("[api]\nissued_keys = \"required\"\nkey_secret = {:?}", "hush".repeat(8))));
    assert!(!format!("{loaded:?}").contains("hush"));
}
