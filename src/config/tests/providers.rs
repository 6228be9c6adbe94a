use crate::mail::compose::Identity;
use std::io::Write as _;

use secrecy::ExposeSecret as _;

use super::*;
use crate::mail::endpoint::{Mechanism, Timeouts};

#[test]
fn provider_defaults_hold_for_every_provider_that_does_not_say_otherwise() {
    let text = "connections = 2\n[provider.b]\nhost = \"b.example\"\n[provider_defaults]\nconnections = 5\n\
                timeouts.connect = \"7s\"";
    let settings = loaded(&with(text)).settings;
    assert_eq!((settings.providers["primary"].connections, settings.providers["b"].connections), (2, 5));
    assert_eq!(settings.providers["primary"].endpoint.timeouts.connect, Duration::from_secs(7));
    refused(&with("[provider_defaults]\nhost = \"x\""), &["provider_defaults.host"]);
    refused(&with("[provider_defaults]\nbreaker.treshold = 1"), &["provider_defaults.breaker.treshold"]);
    refused(
        &with("[provider.b]\nhost = \"b\"\n[provider_defaults]\nconnections = 0"),
        &["provider_defaults.connections"],
    );
}

#[test]
fn a_password_comes_from_a_file_without_its_last_line_feed() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "hunter2 ").unwrap();
    let text = format!("username = \"app\"\nmechanism = \"login\"\npassword_file = {:?}", file.path());
    let auth = loaded(&with(&text)).settings.providers["primary"].endpoint.auth.clone().unwrap();
    assert_eq!((auth.secret.expose_secret(), auth.mechanism), ("hunter2 ", Some(Mechanism::Login)));
    let both = set(with(&text), "OUTBOXD__PROVIDER__PRIMARY__PASSWORD", "x");
    assert!(problems(&both)[0].contains("are both set"));
    let missing = problems(&with("username = \"app\"\npassword_file = \"/nowhere/x\""));
    assert!(missing[0].contains("provider.primary.password_file") && missing[0].contains("/nowhere/x"));
}

#[test]
fn credentials_are_whole_or_absent() {
    refused(&with("username = \"app\""), &["provider.primary.username", "provider.primary.password_file"]);
    refused(&with("password = \"x\""), &["provider.primary.password", "provider.primary.username"]);
    refused(&with("username = \"app\"\npassword = \"\""), &["provider.primary.password", "empty"]);
    refused(&with("username = \"app\"\npassword = \"a\\u0000b\""), &["provider.primary.password", "control"]);
}

#[test]
fn a_password_never_goes_over_a_readable_connection() {
    let text = "security = \"plaintext\"\nusername = \"app\"\npassword = \"x\"";
    refused(&with(text), &["provider.primary.security", "provider.primary.password", "starttls"]);
}

#[test]
fn plaintext_must_be_spelled_out_and_is_warned_about_unless_it_stays_on_this_machine() {
    let relay = loaded(&with("security = \"plaintext\""));
    assert_eq!(relay.settings.providers["primary"].endpoint.port, 25);
    assert!(relay.warnings[0].contains("provider.primary.security"), "{:?}", relay.warnings);
    let local = LEAST.replace("smtp.example.com", "127.0.0.1");
    assert!(loaded(&raw(&format!("{local}security = \"plaintext\"\nport = 1025"))).warnings.is_empty());
    refused(&with("security = \"none\""), &["provider.primary.security", "starttls", "plaintext"]);
    refused(&with("security = \"plaintext\"\ntls_server_name = \"x\""), &["provider.primary.tls_ca_file", "remove"]);
    assert_eq!(loaded(&with("security = \"starttls\"")).settings.providers["primary"].endpoint.port, 587);
}

#[test]
fn a_certificate_authority_must_be_readable() {
    refused(&with("tls_ca_file = \"/nowhere/ca.pem\""), &["provider.primary.tls_ca_file", "/nowhere/ca.pem"]);
}

#[test]
fn a_host_is_a_name_or_an_address_and_nothing_more() {
    for host in ["smtp://mail.example", "mail.example:587", "mail example", ""] {
        let text = LEAST.replace("smtp.example.com", host);
        refused(&raw(&text), &["provider.primary.host"]);
    }
    for host in ["mail.example", "localhost", "192.0.2.1", "2001:db8::1"] {
        loaded(&raw(&LEAST.replace("smtp.example.com", host)));
    }
}

#[test]
fn the_send_deadline_leaves_time_for_the_final_answer() {
    refused(&with("send_deadline = \"9m\""), &["provider.primary.send_deadline", "timeouts.end_of_data"]);
    loaded(&with("send_deadline = \"10m\""));
}

#[test]
fn the_reference_states_the_limits_of_the_smtp_client_and_lets_them_run_out() {
    let settings = loaded(&with("")).settings;
    let primary = &settings.providers["primary"];
    assert_eq!(primary.endpoint.timeouts, Timeouts::default());
    assert!(primary.send_deadline >= primary.endpoint.timeouts.transmit());
}

#[test]
fn resending_needs_a_dedup_contract() {
    let text = "[recovery]\non_uncertain = \"resend-within-window\"";
    refused(
        &with(text),
        &["recovery.on_uncertain", "provider.primary.on_uncertain", "[provider.primary.dedup]", "hold"],
    );
}

#[test]
fn the_recovery_window_fits_into_the_dedup_window_and_leaves_room_for_a_whole_resend() {
    let text = |recovery: &str, dedup: &str| {
        let all = "on_uncertain = \"resend-within-window\"\nrecovery_window = \"R\"\ndedup.window = \"D\"";
        with(&all.replace('R', recovery).replace('D', dedup))
    };
    refused(&text("25h", "24h"), &["provider.primary.recovery_window", "provider.primary.dedup.window"]);
    refused(&text("1530s", "24h"), &["provider.primary.recovery_window", "send_deadline", "recovery.clock_margin"]);
    let settings = loaded(&text("1531s", "24h")).settings;
    assert_eq!(settings.providers["primary"].recovery.resend_room, Some(Duration::from_secs(1)));
    assert_eq!(settings.providers["primary"].recovery.dedup_scope, "primary");
}

#[test]
fn accepting_duplicates_is_warned_about_at_every_start() {
    let loaded = loaded(&with("on_uncertain = \"accept-duplicates\""));
    assert!(loaded.warnings[0].contains("provider.primary.on_uncertain"), "{:?}", loaded.warnings);
    refused(
        &with("on_uncertain = \"accept-duplicates\"\nrecovery_window = \"5m\""),
        &["provider.primary.recovery_window", "provider.primary.send_deadline"],
    );
}

#[test]
fn a_dedup_contract_names_a_window_and_a_header_of_its_own() {
    refused(&with("dedup.scope = \"account\""), &["provider.primary.dedup.window"]);
    for header in ["Subject", "Content-Type", "X Y", "X:Y", "", "Ünique"] {
        let text = format!("dedup.window = \"1h\"\ndedup.header = \"{header}\"");
        refused(&with(&text), &["provider.primary.dedup.header"]);
    }
    let own = loaded(&with("dedup.window = \"1h\"\ndedup.header = \"Resend-Idempotency-Key\"")).settings;
    assert_eq!(
        own.providers["primary"].identity,
        Identity::new("example.com", Some("Resend-Idempotency-Key")).unwrap()
    );
    let message_id = loaded(&with("dedup.window = \"1h\"\ndedup.header = \"Message-ID\"")).settings;
    assert_eq!(message_id.providers["primary"].identity, Identity::new("example.com", None).unwrap());
}

#[test]
fn providers_of_one_route_may_differ_in_scope_but_one_scope_is_one_contract() {
    let both = |a: &str, b: &str| {
        with(&format!("{a}\n[provider.b]\nhost = \"b.example\"\n{b}\n[route]\ndefault = [\"primary\", \"b\"]"))
    };
    let day = "dedup.window = \"24h\"";
    loaded(&both(day, ""));
    loaded(&both(day, "dedup.window = \"24h\"\ndedup.scope = \"primary\""));
    let words = ["provider.primary", "provider.b", "scope"];
    refused(&both(day, "dedup.window = \"1h\"\ndedup.scope = \"primary\""), &words);
    refused(&both(day, "dedup.window = \"24h\"\ndedup.scope = \"primary\"\ndedup.header = \"X-Other\""), &words);
    refused(&both("", "dedup.window = \"24h\"\ndedup.scope = \"primary\""), &words);
}

#[test]
fn a_route_names_known_providers_once_each() {
    refused(&with("[route]\nbulk = [\"primary\", \"typo\"]"), &["route.bulk", "typo", "[provider.typo]"]);
    refused(&with("[route]\nbulk = [\"primary\", \"primary\"]"), &["route.bulk", "twice"]);
    refused(&with("[route]\nbulk = []"), &["route.bulk"]);
    refused(&with("[route]\nbulk = 3"), &["route.bulk"]);
}

#[test]
fn a_provider_in_no_route_is_pointed_out() {
    let warnings = loaded(&with("[provider.spare]\nhost = \"b.example\"")).warnings;
    assert!(warnings[0].contains("provider.spare"), "{warnings:?}");
}

#[test]
fn a_broken_provider_is_not_also_reported_as_unknown_to_its_route() {
    refused(&with("port = 0"), &["provider.primary.port"]);
}

#[test]
fn names_of_providers_can_be_written_in_the_environment() {
    for name in ["Primary", "a__b", "a.b", "ä"] {
        let text = format!("[provider.{name:?}]\nhost = \"b.example\"\n[route]\ndefault = [\"primary\", {name:?}]");
        refused(&with(&text), &["rename"]);
    }
}
