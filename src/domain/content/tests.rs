use serde_json::json;

use super::*;

fn raw() -> RawContent {
    RawContent {
        id: "01890000-0000-7000-8000-000000000001".parse().unwrap(),
        created_at: OffsetDateTime::UNIX_EPOCH,
        sender: "shop@example.org".to_owned(),
        sender_name: None,
        recipient: "jane@example.net".to_owned(),
        recipient_name: None,
        reply_to: None,
        subject: "Hello".to_owned(),
        body_text: Some("Text".to_owned()),
        body_html: None,
        headers: json!([]),
        attachments: json!([]),
        list_unsubscribe: None,
        list_unsubscribe_post: false,
    }
}

/// The refusal of the content that `change` makes.
fn refused(change: impl FnOnce(&mut RawContent)) -> String {
    let mut raw = raw();
    change(&mut raw);
    Content::parse(raw).unwrap_err().to_string()
}

fn taken(change: impl FnOnce(&mut RawContent)) -> Content {
    let mut raw = raw();
    change(&mut raw);
    Content::parse(raw).unwrap()
}

#[test]
fn a_refusal_names_the_field_and_what_to_do_and_holds_nothing_of_the_content() {
    let secret = "hunter2@\r\nsecret";
    for (problem, begins) in [
        (refused(|raw| raw.sender = secret.to_owned()), "sender: has a control"),
        (refused(|raw| raw.recipient = "hunter2".to_owned()), "recipient: has no `@`"),
        (refused(|raw| raw.recipient = "Hunter <hunter2@example.org>".to_owned()), "recipient: has a display name"),
        (refused(|raw| raw.reply_to = Some(secret.to_owned())), "reply_to: has a control"),
        (refused(|raw| raw.sender_name = Some(secret.to_owned())), "sender_name: has a control"),
        (refused(|raw| raw.recipient_name = Some("a\0hunter2".to_owned())), "recipient_name: has a control"),
        (refused(|raw| raw.subject = secret.to_owned()), "subject: has a control"),
        (refused(|raw| raw.subject = "\u{85}hunter2".to_owned()), "subject: has a control"),
        (refused(|raw| raw.body_text = Some("hunter2\0".to_owned())), "body_text: has a NUL"),
        (refused(|raw| raw.body_html = Some("hunter2\0".to_owned())), "body_html: has a NUL"),
        (refused(|raw| raw.headers = json!([["X-A", secret]])), "headers[0]: has a control"),
        (refused(|raw| raw.list_unsubscribe = Some("http://hunter2".to_owned())), "list_unsubscribe: is neither"),
        (refused(|raw| raw.list_unsubscribe = Some("https://hunter2>".to_owned())), "list_unsubscribe: has a"),
    ] {
        assert!(problem.starts_with(begins), "{problem}");
        assert!(problem.contains("; "), "no remedy: {problem}");
        assert!(!problem.contains("hunter2"), "{problem}");
    }
}

#[test]
fn every_limit_takes_its_number_and_refuses_one_more() {
    use limits::*;
    taken(|raw| raw.subject = "s".repeat(SUBJECT_MAX_OCTETS));
    assert!(refused(|raw| raw.subject = "s".repeat(SUBJECT_MAX_OCTETS + 1)).starts_with("subject: is longer"));
    taken(|raw| raw.sender_name = Some("n".repeat(NAME_MAX_OCTETS)));
    assert!(
        refused(|raw| raw.sender_name = Some("n".repeat(NAME_MAX_OCTETS + 1))).starts_with("sender_name: is longer")
    );
    taken(|raw| raw.body_text = Some("b".repeat(BODY_MAX_OCTETS)));
    assert!(refused(|raw| raw.body_html = Some("b".repeat(BODY_MAX_OCTETS + 1))).starts_with("body_html: is longer"));
    taken(|raw| raw.headers = json!(vec![["X-A", "v"]; HEADERS_MAX_COUNT]));
    assert!(
        refused(|raw| raw.headers = json!(vec![["X-A", "v"]; HEADERS_MAX_COUNT + 1])).starts_with("headers: has more")
    );
    taken(|raw| raw.headers = json!([["X".repeat(HEADER_NAME_MAX_OCTETS), "v"]]));
    assert!(refused(|raw| raw.headers = json!([["X".repeat(HEADER_NAME_MAX_OCTETS + 1), "v"]])).contains("valid name"));
    taken(|raw| raw.headers = json!([["X-A", "v".repeat(HEADER_MAX_OCTETS - 5)]]));
    assert!(
        refused(|raw| raw.headers = json!([["X-A", "v".repeat(HEADER_MAX_OCTETS - 4)]])).contains("longer than 998")
    );
    let uri = |octets: usize| Some(format!("https://{}", "u".repeat(octets - "https://".len())));
    taken(|raw| raw.list_unsubscribe = uri(LIST_UNSUBSCRIBE_MAX_OCTETS));
    assert!(refused(|raw| raw.list_unsubscribe = uri(LIST_UNSUBSCRIBE_MAX_OCTETS + 1)).contains("is longer"));
}

#[test]
fn a_message_needs_one_body_that_is_not_empty() {
    for (text, html) in [(None, None), (Some(""), None), (None, Some("")), (Some(""), Some(""))] {
        let problem = refused(|raw| {
            raw.body_text = text.map(str::to_owned);
            raw.body_html = html.map(str::to_owned);
        });
        assert!(problem.starts_with("body_text: is empty and so is body_html"), "{problem}");
    }
    let content = taken(|raw| {
        raw.body_text = Some(String::new());
        raw.body_html = Some("<p>".to_owned());
    });
    assert!(content.body == Body::Html("<p>".to_owned()));
}

#[test]
fn a_blank_name_is_no_name() {
    assert!(taken(|raw| raw.sender_name = Some("  ".to_owned())).sender.name.is_none());
    assert_eq!(taken(|raw| raw.sender_name = Some(" Shop ".to_owned())).sender.name.as_deref(), Some("Shop"));
}

#[test]
fn a_producer_may_not_set_what_outboxd_or_a_mail_server_sets() {
    for name in RESERVED_HEADERS.iter().copied().chain(["Content-Type", "content-disposition", "BCC", "Resent-To"]) {
        assert!(
            refused(|raw| raw.headers = json!([["X-Fine", "v"], [name, "v"]])).starts_with("headers[1]: sets"),
            "{name}"
        );
    }
}

#[test]
fn headers_that_are_not_pairs_of_good_strings_are_refused() {
    for headers in [json!(null), json!({"X-A": "v"}), json!("X-A: v")] {
        assert!(refused(|raw| raw.headers = headers).starts_with("headers: is not an array"));
    }
    for pair in
        [json!("X-A"), json!(["X-A"]), json!(["X-A", "v", "w"]), json!(["X-A", 1]), json!([null, "v"]), json!({})]
    {
        assert!(refused(|raw| raw.headers = json!([pair])).starts_with("headers[0]: is not a pair"), "{pair}");
    }
    for name in ["", "X A", "X:A", "X-A\r\nBcc", "X-É", "X\tA", "X\0"] {
        assert!(
            refused(|raw| raw.headers = json!([[name, "v"]])).starts_with("headers[0]: has no valid name"),
            "{name:?}"
        );
    }
    assert_eq!(taken(|raw| raw.headers = json!([["X-A", "v"], ["x-a", "é w"]])).headers.len(), 2);
}

#[test]
fn a_headers_value_loses_the_spaces_around_it() {
    for (stored, value) in [("", ""), ("  ", ""), (" v  w ", "v  w"), ("\u{a0}v", "\u{a0}v")] {
        assert_eq!(taken(|raw| raw.headers = json!([["X-A", stored]])).headers[0].value, value);
    }
}

#[test]
fn one_click_unsubscribing_needs_an_https_uri() {
    for uri in [None, Some("mailto:leave@example.org"), Some("http://example.org/leave"), Some("https://")] {
        let problem = refused(|raw| {
            raw.list_unsubscribe = uri.map(str::to_owned);
            raw.list_unsubscribe_post = true;
        });
        assert!(problem.starts_with("list_unsubscribe_post: "), "{problem}");
    }
    for (uri, one_click) in [("HTTPS://example.org/u?a=b", true), ("https://example.org", false), ("mailto:u@x", false)]
    {
        let content = taken(|raw| {
            raw.list_unsubscribe = Some(uri.to_owned());
            raw.list_unsubscribe_post = one_click;
        });
        assert!(content.list_unsubscribe == Some(ListUnsubscribe { uri: uri.to_owned(), one_click }));
    }
}

#[test]
fn a_time_that_no_date_header_can_tell_is_refused() {
    use time::macros::datetime;
    assert!(refused(|raw| raw.created_at = datetime!(1899-12-31 23:59 UTC)).starts_with("created_at: "));
    assert!(refused(|raw| raw.created_at = datetime!(-9999-01-01 0:00 +23)).starts_with("created_at: "));
    assert!(refused(|raw| raw.created_at = datetime!(9999-12-31 23:59 -23)).starts_with("created_at: "));
    taken(|raw| raw.created_at = datetime!(1969-12-31 23:59 UTC));
}

#[test]
fn debug_tells_the_identity_alone() {
    let raw = raw();
    let shown = format!("{raw:?} {:?}", Content::parse(raw.clone()).unwrap());
    assert!(shown.contains("01890000-0000-7000-8000-000000000001"));
    assert!(!shown.contains("jane") && !shown.contains("Hello") && !shown.contains("Text"), "{shown}");
}
