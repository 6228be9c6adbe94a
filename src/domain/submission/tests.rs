use serde_json::{Value, json};

use super::*;
use crate::domain::fingerprint::Fingerprint;

fn body() -> Value {
    json!({
        "sender": "shop@example.org", "recipients": [{"address": "jo@example.net"}],
        "subject": "Your order 17", "body_text": "It is on its way.",
    })
}

fn with(field: &str, value: Value) -> Value {
    let mut body = body();
    body[field] = value;
    body
}

fn read(body: &Value) -> Submission {
    Submission::read(body.to_string().as_bytes()).unwrap()
}

fn fingerprint(body: &Value) -> String {
    Fingerprint::of(&read(body)).to_string()
}

/// What is said about a body that is not taken, in either step.
fn problem(body: &str) -> String {
    match Submission::read(body.as_bytes()) {
        Err(problem) => problem.to_string(),
        Ok(submission) => submission.check(|route| route == "default").unwrap_err().to_string(),
    }
}

#[test]
fn the_published_vectors_hold() {
    let vectors: Vec<Value> = serde_json::from_str(include_str!("../../../docs/fingerprint-vectors.json")).unwrap();
    assert!(vectors.len() >= 8);
    for vector in &vectors {
        // As text: a vector shows what octets a caller may send.
        let submission = Submission::read(vector["body"].as_str().unwrap().as_bytes()).unwrap();
        assert_eq!(submission.canonical(), vector["canonical"], "{}", vector["name"]);
        assert_eq!(Fingerprint::of(&submission).to_string(), vector["fingerprint"], "{}", vector["name"]);
        submission.check(|_| true).unwrap_or_else(|invalid| panic!("{}: {invalid}", vector["name"]));
    }
}

#[test]
fn field_order_white_space_escapes_and_spelled_out_defaults_do_not_matter() {
    let one = fingerprint(&body());
    let other = r#"
        { "body_text": "It is on its \u0077ay.", "subject":"Your order 17", "priority": 5, "route": "default", "headers": [],
          "attachments": null, "reply_to": null, "list_unsubscribe_post": false, "expires_at": null,
          "recipients": [ { "name": null, "address": "jo@example.net" } ], "sender": "shop@example.org" }"#;
    assert_eq!(Fingerprint::of(&Submission::read(other.as_bytes()).unwrap()).to_string(), one);
}

#[test]
fn every_difference_in_content_matters() {
    let mut seen = vec![fingerprint(&body())];
    for changed in [
        with("body_text", json!("It is on its way. ")),
        with("body_text", json!("It is on its way")),
        with("body_html", json!("It is on its way.")),
        with("subject", json!("your order 17")),
        with("subject", json!("Caf\u{e9}")),
        with("subject", json!("Cafe\u{301}")),
        with("sender", json!("Shop@example.org")),
        with("sender_name", json!("Shop")),
        with("sender_name", json!("Shop ")),
        with("recipients", json!([])),
        with("recipients", json!([{"address": "jo@example.net", "name": "Jo"}])),
        with("recipients", json!([{"address": "jo@example.net"}, {"address": "al@example.net"}])),
        with("recipients", json!([{"address": "al@example.net"}, {"address": "jo@example.net"}])),
        with("reply_to", json!("help@example.org")),
        with("headers", json!([["X-A", "1"], ["X-B", "2"]])),
        with("headers", json!([["X-B", "2"], ["X-A", "1"]])),
        with("attachments", json!([{"filename": "a", "content_type": "a/b", "content": "aGVsbG8="}])),
        with("attachments", json!([{"filename": "a", "content_type": "a/b", "content": "aGVsbG8h"}])),
        with("list_unsubscribe", json!("https://example.org/u")),
        with("route", json!("bulk")),
        with("priority", json!(4)),
        with("not_before", json!("2030-01-01T00:00:00Z")),
        with("not_before", json!("2030-01-01T00:00:00.000001Z")),
        with("expires_at", json!("2030-01-01T00:00:00Z")),
    ] {
        let fingerprint = fingerprint(&changed);
        assert!(!seen.contains(&fingerprint), "{changed}");
        seen.push(fingerprint);
    }
}

#[test]
fn one_instant_and_one_file_have_one_fingerprint_however_they_are_spelled() {
    let at = |time: &str| fingerprint(&with("not_before", json!(time)));
    for same in [
        "2030-01-01T02:00:00+02:00",
        "2030-01-01T00:00:00.000Z",
        "2030-01-01t00:00:00z",
        "2030-01-01T00:00:00.0000009Z",
    ] {
        assert_eq!(at(same), at("2030-01-01T00:00:00Z"), "{same}");
    }
    let file = |content: &str| {
        fingerprint(&with("attachments", json!([{"filename": "a", "content_type": "a/b", "content": content}])))
    };
    for same in ["aGVsbG8", "aGVs\nbG8=\n", "aGVs\r\nbG8"] {
        assert_eq!(file(same), file("aGVsbG8="), "{same:?}");
    }
}

#[test]
fn a_body_of_the_wrong_shape_is_refused_by_the_name_of_the_field() {
    for (text, expected) in [
        ("", "is not one JSON object"),
        ("{", "is not one JSON object"),
        ("[]", "body: is of the wrong type"),
        ("null", "body: is of the wrong type"),
        ("{} {}", "sender: is missing"),
        ("{\"sender\": \"\u{0}\"}", "is not one JSON object"),
        (r#"{"sender": "\ud800"}"#, "is not one JSON object"),
        (&format!("{} x", body()), "is not one JSON object"),
        (&with("sender", json!(1)).to_string(), "sender: is of the wrong type"),
        (&with("sender", json!(null)).to_string(), "sender: is of the wrong type"),
        (&with("colour", json!("red")).to_string(), "colour: is not a field"),
        (&with("account_id", json!("acme")).to_string(), "account_id: is not a field"),
        (
            &with("recipients", json!([{"address": "a@b.example", "cc": "x"}])).to_string(),
            "recipients[0].cc: is not a field",
        ),
        (&with("recipients", json!([{"name": "x"}])).to_string(), "recipients[0].address: is missing"),
        (&with("recipients", json!("a@b.example")).to_string(), "recipients: is of the wrong type"),
        (&with("headers", json!([["a"]])).to_string(), "headers[0]: is of the wrong type"),
        (&with("headers", json!([["a", 1]])).to_string(), "headers[0][1]: is of the wrong type"),
        (&with("priority", json!(-1)).to_string(), "priority: is of the wrong type or out of range"),
        (&with("priority", json!(5.0)).to_string(), "priority: is of the wrong type or out of range"),
        (&with("not_before", json!("tomorrow")).to_string(), "not_before: is not a time"),
        (&with("not_before", json!("1969-12-31T23:59:59Z")).to_string(), "not_before: is not a time"),
        (&with("expires_at", json!("9999-12-31T23:59:59-01:00")).to_string(), "expires_at: is not a time"),
        (&body().to_string().replacen('{', r#"{"sender": "a@b.example","#, 1), "sender: is there twice"),
    ] {
        let problem = problem(text);
        assert!(problem.starts_with(expected), "{text}: {problem}");
    }
}

#[test]
fn content_that_no_message_can_be_made_of_is_refused_by_the_name_of_the_field() {
    let many: Vec<_> = (0..51).map(|i| json!({"address": format!("r{i}@example.net")})).collect();
    let large = json!([{"filename": "a", "content_type": "a/b", "content": STANDARD.encode(vec![0; 3 * 1024 * 1024])}]);
    let mut heavy = with("attachments", large);
    heavy["recipients"] = json!(many[..50]);
    for (body, expected) in [
        (with("sender", json!("shop")), "sender: has no `@`"),
        (with("sender_name", json!("a\nb")), "sender_name: has a control character"),
        (with("recipients", json!([{"address": "Jo <jo@example.net>"}])), "recipients[0].address: has a display name"),
        (with("recipients", json!([{"address": "jo@example.net", "name": "a\u{0}"}])), "recipients[0].name: has a NUL"),
        (
            with("recipients", json!([{"address": "jo@example.net", "name": "a\r\nBcc: x"}])),
            "recipients[0].name: has a control",
        ),
        (
            with("recipients", json!([{"address": "jo@example.net"}, {"address": "jo@EXAMPLE.net"}])),
            "recipients[1].address: is the same as recipients[0].address",
        ),
        (with("recipients", json!(many)), "recipients: has more than 50"),
        (heavy, "recipients: come to more than"),
        (with("subject", json!("a\nb")), "subject: has a control character"),
        (with("subject", json!("a\u{0}b")), "subject: has a NUL"),
        (with("body_text", json!("")), "body_text: is empty"),
        (with("body_text", json!("a\u{0}")), "body_text: has a NUL"),
        (with("body_text", json!("a".repeat(2 * 1024 * 1024 + 1))), "body_text: is longer"),
        (with("reply_to", json!("x")), "reply_to: has no `@`"),
        (with("headers", json!([["From", "x"]])), "headers[0]: sets a header"),
        (
            with("attachments", json!([{"filename": "a", "content_type": "a/b", "content": "@"}])),
            "attachments[0].content: is not base64",
        ),
        (
            with("attachments", json!([{"filename": "a/b", "content_type": "a/b", "content": ""}])),
            "attachments[0].filename: has",
        ),
        (with("list_unsubscribe", json!("ftp://x")), "list_unsubscribe: is neither"),
        (with("list_unsubscribe_post", json!(true)), "list_unsubscribe_post: asks for"),
        (with("priority", json!(10)), "priority: is not between 0"),
        (with("route", json!("bulk")), "route: is not a configured route"),
        (with("route", json!("")), "route: is not a configured route"),
    ] {
        let problem = problem(&body.to_string());
        assert!(problem.starts_with(expected), "{expected}: {problem}");
        assert!(!problem.contains("example.net"), "a refusal repeats no content: {problem}");
    }
}

#[test]
fn a_message_for_nobody_is_a_message() {
    read(&with("recipients", json!([]))).check(|_| true).unwrap();
}

#[test]
fn refusals_of_shape_repeat_no_content() {
    for text in [
        with("sender", json!({"secret@example.net": "secret"})).to_string(),
        with("priority", json!("secret")).to_string(),
        with("recipients", json!(["secret"])).to_string(),
        with("headers", json!([["a", ["secret"]]])).to_string(),
    ] {
        assert!(!problem(&text).contains("secret"), "{}", problem(&text));
    }
}
