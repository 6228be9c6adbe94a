//! Every kind of notification, and what must be in the mailbox for it: written from the notification on one side, read by
//! mail-parser from the delivered file on the other.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mail_parser::{HeaderForm, Message, MessageParser, MimeHeaders as _, PartType};
use outboxd::domain::ids::NotificationId;
use outboxd::store::enqueue::{NewAttachment, NewNotification};

/// A domain that is not ASCII, as producers write it and as it goes on the wire (RFC 5890, 2.3.2.1).
pub(super) const IDN: [&str; 2] = ["bücher.test", "xn--bcher-kva.test"];

/// Who gets mail: with an ordinary address, with one that only a server with SMTPUTF8 takes, and under [`IDN`].
pub(super) const RECIPIENTS: [&str; 3] = ["jo@outbox.test", "josé@outbox.test", "anna@bücher.test"];

/// The right side of every Message-ID in these tests.
pub(super) const ID_DOMAIN: &str = "ids.outbox.test";

/// A message as a recipient sees it, with its line ends made equal.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mail {
    ids: Vec<String>,
    message_id: String,
    return_path: String,
    delivered_to: String,
    from: (Option<String>, String),
    to: (Option<String>, String),
    reply_to: Option<String>,
    subject: String,
    text: Option<String>,
    html: Option<String>,
    attachments: Vec<(String, String, Vec<u8>)>,
    own: Vec<(String, String)>,
    unsubscribe: Option<String>,
    unsubscribe_post: Option<String>,
    auto_submitted: Vec<String>,
}

impl Mail {
    /// What must arrive for `new`, whose id travels in the header `id_header`.
    pub(super) fn of(id: NotificationId, new: &NewNotification) -> Self {
        let file = |file: &NewAttachment| {
            let content = STANDARD.decode(&file.content).unwrap();
            (file.filename.clone(), file.content_type.clone(), content)
        };
        Self {
            ids: vec![id.to_string()],
            message_id: format!("{id}@{ID_DOMAIN}"),
            return_path: wire(&new.sender),
            delivered_to: wire(&new.recipient),
            from: (new.sender_name.clone(), wire(&new.sender)),
            to: (new.recipient_name.clone(), wire(&new.recipient)),
            reply_to: new.reply_to.as_deref().map(wire),
            subject: new.subject.clone(),
            text: new.body_text.as_deref().map(same_line_ends),
            html: new.body_html.as_deref().map(same_line_ends),
            attachments: new.attachments.iter().map(file).collect(),
            own: new.headers.clone(),
            unsubscribe: new.list_unsubscribe.as_ref().map(|uri| format!("<{uri}>")),
            unsubscribe_post: new.list_unsubscribe_post.then(|| "List-Unsubscribe=One-Click".to_owned()),
            auto_submitted: vec!["auto-generated".to_owned()],
        }
    }

    /// What arrived.
    pub(super) fn read(file: &[u8], id_header: &str) -> Self {
        let message = MessageParser::default().parse(file).expect("a message");
        let all = |name: &'static str| raw(&message, name);
        let one = |name: &'static str| -> Option<String> {
            let values = all(name);
            assert!(values.len() <= 1, "{name} stands {} times", values.len());
            values.into_iter().next()
        };
        let mailbox = |address: Option<&mail_parser::Address<'_>>| {
            let mailbox = address.and_then(|list| list.first()).expect("a mailbox");
            (mailbox.name().map(str::to_owned), mailbox.address().expect("an address").to_owned())
        };
        let mut text = None;
        let mut html = None;
        let mut attachments = Vec::new();
        for part in &message.parts {
            let is_file = part.content_disposition().is_some_and(|disposition| disposition.is_attachment());
            match &part.body {
                PartType::Multipart(_) => {}
                _ if is_file => attachments.push((
                    part.attachment_name().expect("a file name").to_owned(),
                    media_type(part.content_type().expect("a media type")),
                    part.contents().to_vec(),
                )),
                PartType::Text(content) => assert_eq!(text.replace(same_line_ends(content)), None, "one text"),
                PartType::Html(content) => assert_eq!(html.replace(same_line_ends(content)), None, "one HTML"),
                PartType::Binary(_) | PartType::InlineBinary(_) | PartType::Message(_) => panic!("an unknown part"),
            }
        }
        Self {
            ids: message
                .headers_raw()
                .filter(|(name, _)| name.eq_ignore_ascii_case(id_header))
                .map(|(_, value)| value.trim().to_owned())
                .collect(),
            message_id: message.message_id().expect("a Message-ID").to_owned(),
            return_path: one("Return-Path").expect("a Return-Path").trim_matches(['<', '>']).to_owned(),
            delivered_to: one("Delivered-To").expect("a Delivered-To"),
            from: mailbox(message.from()),
            to: mailbox(message.to()),
            reply_to: message.reply_to().map(|reply_to| mailbox(Some(reply_to)).1),
            subject: message.subject().unwrap_or_default().to_owned(),
            text,
            html,
            attachments,
            own: own(&message),
            unsubscribe: one("List-Unsubscribe"),
            unsubscribe_post: one("List-Unsubscribe-Post"),
            auto_submitted: all("Auto-Submitted"),
        }
    }

    /// The notification that it says it is.
    pub(super) fn id(&self) -> NotificationId {
        assert_eq!(self.ids.len(), 1, "one header carries the id: {:?}", self.ids);
        self.ids[0].parse().expect("a notification's id")
    }
}

fn raw(message: &Message<'_>, name: &'static str) -> Vec<String> {
    let values = message.header_as(name, HeaderForm::Raw);
    values.iter().filter_map(|value| value.as_text()).map(str::to_owned).collect()
}

/// The headers that these tests' producers set themselves, decoded, in the order of the message.
fn own(message: &Message<'_>) -> Vec<(String, String)> {
    let mut seen: Vec<(String, String)> = Vec::new();
    for header in message.headers() {
        let name = header.name();
        if name.starts_with("X-Shop-") {
            // The n-th of a name has the n-th value.
            let before = seen.iter().filter(|(other, _)| other == name).count();
            let values = message.header_as(name.to_owned(), HeaderForm::Text);
            seen.push((name.to_owned(), values[before].as_text().unwrap_or_default().to_owned()));
        }
    }
    seen
}

fn media_type(content_type: &mail_parser::ContentType<'_>) -> String {
    let mut text = format!("{}/{}", content_type.ctype(), content_type.subtype().unwrap_or_default());
    for attribute in content_type.attributes().unwrap_or_default() {
        text.push_str(&format!("; {}={}", attribute.name, attribute.value));
    }
    text
}

fn wire(address: &str) -> String {
    address.replace(IDN[0], IDN[1])
}

/// LF alone, and none at the end: a message's last line always ends in one.
fn same_line_ends(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n").trim_end_matches('\n').to_owned()
}

/// `rounds` of every kind of notification, no two alike.
pub(super) fn every_kind(rounds: u32) -> Vec<NewNotification> {
    (0..rounds).flat_map(kinds).collect()
}

/// One of each kind.
fn kinds(round: u32) -> Vec<NewNotification> {
    let mut all = Vec::new();
    let mut add = |kind: &str, change: &dyn Fn(&mut NewNotification)| {
        let mut new = NewNotification {
            account_id: format!("account-{}", round % 3),
            sender: "shop@outbox.test".to_owned(),
            recipient: RECIPIENTS[0].to_owned(),
            subject: format!("{kind}, number {round}"),
            body_text: Some(format!("Hello,\n\nthis is {kind}, number {round}.\n")),
            ..NewNotification::default()
        };
        change(&mut new);
        all.push(new);
    };
    add("plain text", &|_| {});
    add("HTML", &|new| {
        new.body_text = None;
        new.body_html =
            Some(format!("<p>Grüße, <b>{round}</b> &amp; 👋</p>\n<a href=\"https://x.test/?a=1&b=2\">go</a>"));
    });
    add("text and HTML", &|new| {
        new.body_html = Some(format!("<html><body><p>{round}</p></body></html>\r\n"));
    });
    add("one attachment", &|new| new.attachments = vec![file("invoice.pdf", "application/pdf", &bytes(round, 70_000))]);
    add("attachments", &|new| {
        new.body_html = Some("<p>See below</p>".to_owned());
        new.attachments = vec![
            file("Übersicht 2026 – März.csv", "text/csv; charset=utf-8", "Größe;Preis\n1;2\n".as_bytes()),
            file("a \"quoted\" name.bin", "application/octet-stream", &bytes(round, round as usize * 57)),
            file("empty.dat", "application/octet-stream", b""),
            file("pixel.png", "image/png", b"\x89PNG\r\n\x1a\n.\r\n.\r\n"),
        ];
    });
    add("international text", &|new| {
        new.subject = format!("Größe Nr. {round}: 你好, Привет, 👩‍👩‍👧‍👦 {}", "lang ".repeat(30).trim_end());
        new.sender_name = Some("Müller & Söhne, \"GmbH\"".to_owned());
        new.recipient_name = Some("Łucja Ștefănescu".to_owned());
        new.body_text = Some("Grüße aus Köln\n".repeat(5) + "日本語のテキスト\n");
    });
    add("an internationalised recipient", &|new| {
        new.recipient = RECIPIENTS[1].to_owned();
        new.recipient_name = Some("José".to_owned());
    });
    add("a domain that is not ASCII", &|new| {
        new.recipient = RECIPIENTS[2].to_owned();
        new.sender = "rechnung@bücher.test".to_owned();
        new.reply_to = Some("hilfe@bücher.test".to_owned());
    });
    add("leading dots", &|new| {
        new.body_text = Some(".\n..\n...three\n.\r\n.\n\n.hidden\n".to_owned() + &".\n".repeat(round as usize));
        new.body_html = Some(".\n.<p>..</p>\n".to_owned());
    });
    add("long lines", &|new| {
        new.body_text = Some(format!("{}\n{}\n{}", "word ".repeat(1_000), "x".repeat(5_000), "ü".repeat(2_000)));
        new.body_html = Some("<i>y</i>".repeat(2_000));
    });
    add("headers of its own", &|new| {
        new.headers = vec![
            own_header("Campaign", "spring"),
            own_header("Tag", "one"),
            own_header("Tag", "two, with=signs; and (parentheses)"),
            own_header("Greeting", "Grüße aus 東京"),
            own_header("Long", "word ".repeat(150).trim_end()),
            own_header("Round", &round.to_string()),
        ];
    });
    add("a way to unsubscribe", &|new| {
        new.list_unsubscribe = Some(format!("https://x.test/u?n={round}&t={}", "z".repeat(200)));
        new.list_unsubscribe_post = true;
        new.reply_to = Some("help+tag@outbox.test".to_owned());
    });
    add("white space and old traps", &|new| {
        let traps =
            ["From the start", "trailing  ", "\ttab", "a=20b =3D =", "--", "-- ", "", "", "--=_outboxd_m_", "end"];
        new.body_text = Some(traps.join(["\n", "\r\n", "\r"][round as usize % 3]));
        new.sender = "\"the shop\"@outbox.test".to_owned();
        new.sender_name = Some("=?utf-8?q?not_encoded?=".to_owned());
        new.priority = Some(i32::try_from(round % 10).unwrap());
    });
    all
}

fn own_header(name: &str, value: &str) -> (String, String) {
    (format!("X-Shop-{name}"), value.to_owned())
}

fn file(name: &str, content_type: &str, content: &[u8]) -> NewAttachment {
    NewAttachment {
        filename: name.to_owned(),
        content_type: content_type.to_owned(),
        content: STANDARD.encode(content),
    }
}

/// Every byte there is, in an order that differs from round to round.
fn bytes(round: u32, count: usize) -> Vec<u8> {
    (0..count as u64).map(|at| ((at * (2 * u64::from(round) + 1) + at / 256) % 256) as u8).collect()
}
