use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mail_parser::{MessageParser, MimeHeaders};
use proptest::prelude::*;
use serde_json::{Value, json};
use time::macros::datetime;

use super::*;
use crate::domain::content::RawContent;

const ID: &str = "01890000-0000-7000-8000-000000000001";

fn raw() -> RawContent {
    RawContent {
        id: ID.parse().unwrap(),
        created_at: datetime!(2026-11-30 23:59:58.75 +02:00),
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

fn identity() -> Identity {
    Identity::new("outbox.example", None).unwrap()
}

fn composed(change: impl FnOnce(&mut RawContent)) -> Composed {
    let mut raw = raw();
    change(&mut raw);
    compose(&Content::parse(raw).unwrap(), &identity()).unwrap()
}

fn written(change: impl FnOnce(&mut RawContent)) -> String {
    String::from_utf8(composed(change).bytes).unwrap()
}

fn head(message: &str) -> &str {
    message.split_once("\r\n\r\n").unwrap().0
}

fn file(filename: &str, content_type: &str, content: &[u8]) -> Value {
    json!({"filename": filename, "content_type": content_type, "content": STANDARD.encode(content)})
}

#[test]
fn a_plain_message_is_these_bytes_on_every_attempt() {
    let expected = "Date: Mon, 30 Nov 2026 21:59:58 +0000\r\n\
        From: \"The Shop\" <shop@example.org>\r\n\
        To: jane@example.net\r\n\
        Reply-To: help@example.org\r\n\
        Subject: Your order\r\n\
        Message-ID: <01890000-0000-7000-8000-000000000001@outbox.example>\r\n\
        X-Notification-ID: 01890000-0000-7000-8000-000000000001\r\n\
        Auto-Submitted: auto-generated\r\n\
        List-Unsubscribe: <https://example.org/u?a=1>\r\n\
        List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n\
        X-Tag: one\r\n\
        X-Tag: two\r\n\
        MIME-Version: 1.0\r\n\
        Content-Type: text/plain; charset=utf-8\r\n\
        Content-Transfer-Encoding: 7bit\r\n\
        \r\n\
        It is on its way.\r\n";
    let make = || {
        written(|raw| {
            raw.sender_name = Some("The Shop".to_owned());
            raw.reply_to = Some("help@example.org".to_owned());
            raw.subject = "Your order".to_owned();
            raw.body_text = Some("It is on its way.\n".to_owned());
            raw.headers = json!([["X-Tag", "one"], ["X-Tag", "two"]]);
            raw.list_unsubscribe = Some("https://example.org/u?a=1".to_owned());
            raw.list_unsubscribe_post = true;
        })
    };
    assert_eq!(make(), expected);
    assert_eq!(make(), expected);
}

#[test]
fn the_configured_header_alone_carries_the_id() {
    let content = Content::parse(raw()).unwrap();
    let identity = Identity::new("outbox.example", Some("Resend-Idempotency-Key")).unwrap();
    let message = String::from_utf8(compose(&content, &identity).unwrap().bytes).unwrap();
    assert!(message.contains(&format!("\r\nResend-Idempotency-Key: {ID}\r\n")));
    assert!(!message.contains("X-Notification-ID"));
}

#[test]
fn a_producers_header_cannot_shadow_the_configured_one() {
    let mut raw = raw();
    raw.headers = json!([["X-Fine", "v"], ["x-OUR-key", "forged"]]);
    let identity = Identity::new("outbox.example", Some("X-Our-Key")).unwrap();
    let problem = compose(&Content::parse(raw).unwrap(), &identity).unwrap_err();
    assert_eq!(problem.field, "headers[1]");
}

#[test]
fn an_identity_that_could_break_the_header_section_is_refused() {
    for domain in ["", "a b", "a>\r\nBcc: x", "bücher.de", "-a.example", "[192.0.2.1]"] {
        assert_eq!(Identity::new(domain, None).unwrap_err().field, "message_id_domain", "{domain:?}");
    }
    for header in ["", "X A", "X:", "X\r\nBcc", "Subject", "Content-Type", "Bcc", &"X".repeat(77)] {
        assert_eq!(Identity::new("a.example", Some(header)).unwrap_err().field, "dedup_header", "{header:?}");
    }
}

#[test]
fn the_envelope_is_in_wire_form_and_asks_for_smtputf8_only_where_an_address_needs_it() {
    let idna = composed(|raw| raw.recipient = "anna@bücher.de".to_owned());
    assert_eq!((idna.recipient.as_str(), idna.smtputf8), ("anna@xn--bcher-kva.de", false));
    assert!(idna.bytes.is_ascii());

    let needs: [fn(&mut RawContent); 3] = [
        |raw| raw.recipient = "josé@bücher.de".to_owned(),
        |raw| raw.sender = "josé@bücher.de".to_owned(),
        |raw| raw.reply_to = Some("josé@bücher.de".to_owned()),
    ];
    for change in needs {
        let message = composed(|raw| {
            raw.subject = "Grüße".to_owned();
            raw.body_text = Some("Grüße".to_owned());
            change(raw);
        });
        assert!(message.smtputf8);
        let message = String::from_utf8(message.bytes).unwrap();
        assert!(message.contains("josé@xn--bcher-kva.de"));
        assert_eq!(message.matches(|c: char| !c.is_ascii()).count(), 1, "only the address is UTF-8: {message}");
    }
}

#[test]
fn both_bodies_and_files_nest_as_mixed_over_alternative_with_boundaries_from_the_id() {
    let message = written(|raw| {
        raw.body_html = Some("<p>Text</p>".to_owned());
        raw.attachments = json!([file("a.bin", "application/octet-stream", &[0, 10, 13, 255])]);
    });
    let id = ID.replace('-', "");
    assert!(message.contains(&format!("Content-Type: multipart/mixed;\r\n boundary=\"=_outboxd_m_{id}\"\r\n")));
    assert!(message.contains(&format!("Content-Type: multipart/alternative;\r\n boundary=\"=_outboxd_a_{id}\"\r\n")));
    assert!(message.ends_with(&format!("\r\n--=_outboxd_m_{id}--\r\n")));
    let parsed = MessageParser::default().parse(message.as_bytes()).unwrap();
    assert_eq!(parsed.body_text(0).unwrap(), "Text");
    assert_eq!(parsed.body_html(0).unwrap(), "<p>Text</p>");
    assert_eq!(parsed.attachment(0).unwrap().contents(), [0, 10, 13, 255]);
}

#[test]
fn a_body_cannot_close_a_part_with_the_boundary_it_knows() {
    let id = ID.replace('-', "");
    let body = format!("a\r\n--=_outboxd_a_{id}--\r\n--=_outboxd_m_{id}\r\n\r\nb");
    let message = written(|raw| {
        raw.body_text = Some(body.clone());
        raw.body_html = Some(body.clone());
        raw.attachments = json!([file("a.txt", "text/plain", body.as_bytes())]);
    });
    let parsed = MessageParser::default().parse(message.as_bytes()).unwrap();
    assert_eq!(parsed.body_text(0).unwrap(), body);
    assert_eq!(parsed.body_html(0).unwrap(), body);
    assert_eq!(parsed.attachment(0).unwrap().contents(), body.as_bytes());
}

#[test]
fn names_and_subjects_cannot_add_a_header_or_a_recipient() {
    for hostile in ["x\" <evil@example.com>, \"y", "a@b.c, d@e.f", "=?utf-8?q?=0D=0ABcc:_x@y?=", "é\u{2028}Bcc: x@y"] {
        let message = written(|raw| {
            raw.recipient_name = Some(hostile.to_owned());
            raw.subject = hostile.to_owned();
        });
        let parsed = MessageParser::default().parse(message.as_bytes()).unwrap();
        let to = parsed.to().unwrap().as_list().unwrap();
        assert_eq!(to.len(), 1, "{message}");
        assert_eq!((to[0].name(), to[0].address()), (Some(hostile), Some("jane@example.net")));
        assert_eq!(parsed.subject(), Some(hostile));
        assert!(parsed.bcc().is_none());
        assert_eq!(head(&message).lines().filter(|line| !line.starts_with(' ')).count(), 10, "{message}");
    }
}

#[test]
fn hostile_bodies_survive() {
    for body in [
        ".",
        "..\n.\r\n.x",
        "From here\nFrom there",
        "trailing  \n \t\nspaces ",
        "\n\n\n",
        "\r",
        "\r\r\n\n\r",
        "a\rb\nc\r\nd",
        "🎉🎉",
        "=20=3D=\n=",
        "\u{1b}[31mred\u{7f}",
        "\t",
        " ",
    ]
    .into_iter()
    .map(str::to_owned)
    .chain([75, 76, 77, 997, 998, 999, 5_000].map(|length| "x".repeat(length)))
    .chain([format!("{}\n{}", "x".repeat(5_000), "é".repeat(5_000)), " ".repeat(3_000), "x \n".repeat(3_000)])
    {
        let plain = composed(|raw| raw.body_text = Some(body.clone()));
        assert_text(&plain, &body);
        let html = composed(|raw| (raw.body_text, raw.body_html) = (None, Some(body.clone())));
        let parsed = MessageParser::default().parse(&html.bytes).unwrap();
        assert_eq!(ended(&parsed.body_html(0).unwrap()), ended(&normalised(&body)));
        let both = composed(|raw| raw.body_html = Some(body.clone()));
        let parsed = MessageParser::default().parse(&both.bytes).unwrap();
        assert_eq!(
            parsed.body_html(0).unwrap(),
            normalised(&body),
            "inside a multipart not even the last line end changes"
        );
    }
}

#[test]
fn file_names_survive() {
    for name in [
        "a.pdf",
        "Rechnung Nr. 5.pdf",
        "a\"b;c.txt",
        "naïve.txt",
        "請求書.pdf",
        "🎉.png",
        "=?utf-8?q?x?=.txt",
        "a'b%20c*.txt",
        &"long ".repeat(40),
        &"é".repeat(120),
    ] {
        let message = composed(|raw| raw.attachments = json!([file(name, "text/plain", b"x")]));
        let parsed = MessageParser::default().parse(&message.bytes).unwrap();
        assert_eq!(parsed.attachment(0).unwrap().attachment_name(), Some(name));
    }
}

#[test]
fn a_token_that_fits_one_line_goes_as_it_is_and_no_line_is_longer() {
    let token = "t".repeat(limits::HEADER_MAX_OCTETS - "X-Token: ".len());
    let uri = format!("https://example.org/{}", "u".repeat(limits::LIST_UNSUBSCRIBE_MAX_OCTETS - 20));
    let message = written(|raw| {
        raw.headers = json!([["X-Token", token], ["X-Words", "word ".repeat(190).trim()]]);
        raw.list_unsubscribe = Some(uri.clone());
    });
    assert!(message.contains(&format!("\r\nX-Token: {token}\r\n")));
    assert!(message.contains(&format!("\r\nList-Unsubscribe: <{uri}>\r\n")));
    assert_eq!(message.lines().map(str::len).max(), Some(limits::LINE_MAX_OCTETS));
}

#[test]
fn the_last_look_refuses_what_a_server_could_read_in_two_ways() {
    assert!(check_wire(b"a\r\n\r\nb\r\n", false).is_ok());
    assert!(check_wire("é\r\n".as_bytes(), true).is_ok());
    for bytes in
        [&b"a\nb\r\n"[..], b"a\rb\r\n", b"a\r\r\n", b"a", b"a\r\nb", b"a\n.\r\n", "é\r\n".as_bytes(), &[b'a'; 1001]]
    {
        assert!(check_wire(bytes, false).is_err(), "{bytes:?}");
    }
    assert!(check_wire(&[&[b'a'; 999][..], b"\r\n"].concat(), false).is_err());
}

/// Every line end as CRLF.
fn normalised(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n").replace('\n', "\r\n")
}

/// A message's only part must end in a line end: SMTP knows no other end of data.
fn ended(text: &str) -> String {
    if text.ends_with("\r\n") { text.to_owned() } else { format!("{text}\r\n") }
}

fn assert_text(message: &Composed, body: &str) {
    let parsed = MessageParser::default().parse(&message.bytes).unwrap();
    assert_eq!(ended(&parsed.body_text(0).unwrap()), ended(&normalised(body)));
}

/// Text made of what breaks mailers.
fn hostile_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "\\PC{0,12}",
        "[a-z]{1,9} ",
        " {1,4}",
        Just("=?utf-8?q?x?=".to_owned()),
        Just("\"\\<>,;@".to_owned()),
        Just("🎉".to_owned()),
        Just("é".repeat(40)),
        Just("t".repeat(90)),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn hostile_body() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        hostile_text(),
        "[\r\n\t .]{1,4}",
        Just("\r\n.\r\n".to_owned()),
        Just("\nFrom me\n".to_owned()),
        Just(format!("\n--=_outboxd_a_{}--\n", ID.replace('-', ""))),
        Just("l".repeat(5_000)),
        any::<char>().prop_filter("NUL is refused", |&c| c != '\0').prop_map(String::from),
    ];
    proptest::collection::vec(piece, 1..8).prop_map(|pieces| pieces.concat()).prop_filter("empty", |it| !it.is_empty())
}

fn address() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,9}(\\.[a-z0-9+]{1,9}){0,2}@[a-z]{1,9}\\.(org|example)",
        "[a-z]{1,60}@([a-z]{20}\\.){3}example",
        "[a-z]{1,9}@b[üéß]{1,5}cher\\.example",
        "[a-zé漢]{1,9}@example\\.org",
    ]
}

fn files() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let name = "[\\PC&&[^/\\\\]]{1,30}".prop_filter("blank", |name| !name.trim().is_empty());
    proptest::collection::vec((name, proptest::collection::vec(any::<u8>(), 0..300)), 0..3)
}

/// At most so many octets of `text`.
fn cut(text: &str, octets: usize) -> &str {
    &text[..text.floor_char_boundary(octets)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_taken_composes_and_reads_back_the_same(
        (sender, recipient, reply_to) in (address(), address(), proptest::option::of(address())),
        name in proptest::option::of(hostile_text()),
        subject in hostile_text(),
        (text, html) in (hostile_body(), proptest::option::of(hostile_body())),
        files in files(),
        own in hostile_text(),
    ) {
        let own = cut(&own, limits::HEADER_MAX_OCTETS - "X-Own: ".len());
        let mut raw = raw();
        raw.sender = sender;
        raw.recipient = recipient;
        raw.reply_to = reply_to;
        raw.recipient_name = name.map(|name| cut(&name, limits::NAME_MAX_OCTETS).to_owned());
        raw.subject = cut(&subject, limits::SUBJECT_MAX_OCTETS).to_owned();
        raw.body_text = Some(text.clone());
        raw.body_html = html.clone();
        raw.headers = json!([["X-Own", own]]);
        raw.attachments = files.iter().map(|(name, bytes)| file(name, "application/octet-stream", bytes)).collect();
        let content = Content::parse(raw).unwrap();
        let message = compose(&content, &identity()).unwrap();
        prop_assert_eq!(&message, &compose(&content.clone(), &identity()).unwrap());

        for line in message.bytes.split_inclusive(|&byte| byte == b'\n') {
            let line = line.strip_suffix(b"\r\n").unwrap();
            prop_assert!(line.len() <= limits::LINE_MAX_OCTETS);
            prop_assert!(!line.contains(&b'\r') && !line.contains(&0));
        }
        prop_assert!(message.smtputf8 || message.bytes.is_ascii());

        let parsed = MessageParser::default().parse(&message.bytes).unwrap();
        prop_assert_eq!(parsed.subject().unwrap_or_default(), &content.subject);
        let to = parsed.to().unwrap().as_list().unwrap();
        prop_assert_eq!(to.len(), 1);
        prop_assert_eq!(to[0].address(), Some(content.recipient.address.wire()));
        prop_assert_eq!(to[0].name(), content.recipient.name.as_deref());
        prop_assert_eq!(parsed.message_id(), Some(&*format!("{ID}@outbox.example")));
        if own.is_ascii() {
            let written = parsed.header_raw("X-Own").unwrap().replace("\r\n", "");
            prop_assert_eq!(written.trim(), own.trim_matches(' '));
        }
        prop_assert!(parsed.bcc().is_none() && parsed.cc().is_none());

        let alone = files.is_empty() && html.is_none();
        let same = |read: &str, body: &str| if alone { ended(read) == ended(&normalised(body)) } else { read == normalised(body) };
        prop_assert!(same(&parsed.body_text(0).unwrap(), &text));
        if let Some(html) = &html {
            prop_assert!(same(&parsed.body_html(0).unwrap(), html));
        }
        prop_assert_eq!(parsed.attachment_count(), files.len());
        for (index, (name, bytes)) in files.iter().enumerate() {
            let read = parsed.attachment(u32::try_from(index).unwrap()).unwrap();
            prop_assert_eq!(read.contents(), &bytes[..]);
            prop_assert_eq!(read.attachment_name(), Some(name.as_str()));
        }
    }
}
