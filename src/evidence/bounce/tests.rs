use proptest::prelude::*;

use super::*;

const ID: &str = "01a230e5-9f38-7878-abaa-63e052288578";

fn ours() -> Ours {
    Ours {
        domains: vec!["mail.example.org".to_owned()],
        addresses: vec![("bounce+".to_owned(), "@bounces.example.org".to_owned())],
    }
}

fn id() -> NotificationId {
    ID.parse().unwrap()
}

/// As Postfix writes one.
fn report(to: &str, action: &str, status: &str, original: &str) -> String {
    format!(
        "Return-Path: <>\r\nDate: Tue,  1 Dec 2026 10:00:00 +0000 (UTC)\r\nFrom: MAILER-DAEMON@mx.example.org (Mail Delivery System)\r\n\
         Subject: Undelivered Mail Returned to Sender\r\nTo: {to}\r\nAuto-Submitted: auto-replied\r\nMIME-Version: 1.0\r\n\
         Content-Type: multipart/report; report-type=delivery-status;\r\n\tboundary=\"4F1.1796119200/mx.example.org\"\r\n\
         Message-Id: <20261201100000.4F2@mx.example.org>\r\n\r\nThis is a MIME-encapsulated message.\r\n\r\n\
         --4F1.1796119200/mx.example.org\r\nContent-Description: Notification\r\nContent-Type: text/plain; charset=us-ascii\r\n\r\n\
         I'm sorry to have to inform you that your message could not be delivered.\r\n\r\n\
         --4F1.1796119200/mx.example.org\r\nContent-Description: Delivery report\r\nContent-Type: message/delivery-status\r\n\r\n\
         Reporting-MTA: dns; mx.example.org\r\nX-Postfix-Queue-ID: 4F1\r\nArrival-Date: Tue,  1 Dec 2026 09:59:59 +0000 (UTC)\r\n\r\n\
         Final-Recipient: rfc822; jo@example.net\r\nOriginal-Recipient: rfc822;jo@example.net\r\nAction: {action}\r\nStatus: {status}\r\n\
         Remote-MTA: dns; mx.example.net\r\nDiagnostic-Code: smtp; 550 5.1.1 no such\r\n    user here\r\n\r\n\
         --4F1.1796119200/mx.example.org\r\n{original}\r\n--4F1.1796119200/mx.example.org--\r\n"
    )
}

fn whole(message_id: &str) -> String {
    format!(
        "Content-Description: Undelivered Message\r\nContent-Type: message/rfc822\r\n\r\nFrom: shop@example.org\r\nTo: jo@example.net\r\n\
         Message-ID: <{message_id}>\r\nSubject: Your order\r\n\r\nIt is on its way.\r\n"
    )
}

fn findings(message: &str) -> Vec<Found> {
    match read(message.as_bytes(), &ours()) {
        Bounce::Report(found) => found,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_report_says_is_read_by_its_action() {
    for (action, proof) in [
        ("failed", Proof::Bounced),
        ("Failed (bounced)", Proof::Bounced),
        ("delayed", Proof::Accepted),
        ("delivered", Proof::Delivered),
        ("relayed", Proof::Accepted),
        ("expanded", Proof::Accepted),
        ("vanished", Proof::Inconclusive),
    ] {
        let found = findings(&report("shop@example.org", action, "5.1.1", &whole(&format!("{ID}@mail.example.org"))));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].id, found[0].proof), (id(), proof), "{action}");
        assert_eq!(found[0].reference, "<20261201100000.4F2@mx.example.org>");
        assert_eq!(found[0].words, "smtp; 550 5.1.1 no such user here");
        assert_eq!(found[0].at.unwrap().unix_timestamp(), 1_796_119_200);
    }
}

#[test]
fn the_mail_is_found_by_its_message_id_by_its_header_or_by_the_address_that_the_bounce_came_to() {
    let headers = |message_id: &str| {
        format!(
            "Content-Type: text/rfc822-headers\r\n\r\nFrom: shop@example.org\r\nX-Notification-ID: {ID}\r\nMessage-ID: <{message_id}>\r\n"
        )
    };
    let of_others = whole("x@elsewhere.example");
    for message in [
        report("shop@example.org", "failed", "5.1.1", &whole(&format!("{ID}@mail.example.org"))),
        report("shop@example.org", "failed", "5.1.1", &headers("rewritten@email.amazonses.com")),
        report(&format!("bounce+{ID}@bounces.example.org"), "failed", "5.1.1", &of_others),
        report(&format!("\"x\" <BOUNCE+{}@Bounces.Example.ORG>", ID.to_uppercase()), "failed", "5.1.1", ""),
    ] {
        assert_eq!(findings(&message)[0].id, id(), "{message}");
    }
    for message in [
        report("shop@example.org", "failed", "5.1.1", &of_others),
        report("shop@example.org", "failed", "5.1.1", &whole(&format!("{ID}@mail.example.org.evil.example"))),
        report(&format!("bounce+{ID}@bounces.evil.example"), "failed", "5.1.1", ""),
        report("bounce+@bounces.example.org", "failed", "5.1.1", ""),
        format!("To: shop@example.org\r\nSubject: re\r\n\r\nMessage-ID: <{ID}@mail.example.org>\r\n"),
        String::new(),
    ] {
        assert_eq!(read(message.as_bytes(), &ours()), Bounce::NotOurs, "{message}");
    }
}

#[test]
fn what_came_to_the_address_and_is_no_report_proves_nothing() {
    let answer = format!(
        "From: jo@example.net\r\nTo: bounce+{ID}@bounces.example.org\r\nSubject: Out of office\r\nAuto-Submitted: auto-replied\r\n\r\nBack soon."
    );
    let qmail = format!(
        "Delivered-To: bounce+{ID}@bounces.example.org\r\nFrom: MAILER-DAEMON@example.net\r\nSubject: failure notice\r\n\r\n\
         Hi. This is the qmail-send program at example.net.\n<jo@example.net>:\nSorry, no mailbox here by that name. (#5.1.1)\n"
    );
    for message in [answer, qmail] {
        let Bounce::Other(found) = read(message.as_bytes(), &ours()) else { panic!("{message}") };
        assert_eq!((found.id, found.proof), (id(), Proof::Inconclusive));
        assert_eq!(found.reference.len(), 32, "without a Message-ID it is known by what it is");
    }
}

#[test]
fn a_report_of_several_recipients_and_an_international_one_are_read() {
    let message = report("shop@example.org", "delivered", "2.0.0", &whole(&format!("{ID}@mail.example.org")));
    let two = message.replace(
        "Diagnostic-Code:",
        "X-A: b\r\n\r\nFinal-Recipient: rfc822; al@example.net\r\nAction: failed\r\nStatus: 5.0.0\r\nDiagnostic-Code:",
    );
    let found = findings(&two);
    assert_eq!(found.iter().map(|found| found.proof).collect::<Vec<_>>(), [Proof::Delivered, Proof::Bounced]);
    assert_ne!(found[0].reference, found[1].reference);
    let international = message
        .replace("message/delivery-status\r\n", "message/global-delivery-status\r\n")
        .replace("text/rfc822-headers", "message/global-headers");
    assert_eq!(findings(&international)[0].proof, Proof::Delivered);
    let silent = message.replace("Action: delivered\r\n", "");
    assert!(matches!(read(silent.as_bytes(), &ours()), Bounce::Other(_)));
}

proptest! {
    #[test]
    fn no_message_makes_it_fail(octets in proptest::collection::vec(any::<u8>(), 0..400), at in 0usize..2000, cut in 0usize..2000) {
        let _ = read(&octets, &ours());
        let mut message = report(&format!("bounce+{ID}@bounces.example.org"), "failed", "5.1.1", &whole(&format!("{ID}@mail.example.org"))).into_bytes();
        message.truncate(cut);
        let at = at.min(message.len());
        message.splice(at..at, octets);
        let _ = read(&message, &ours());
    }
}
