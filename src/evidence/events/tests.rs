use super::*;
use crate::evidence::events::ses::PublicKey;

const ID: &str = "01890000-0000-7000-8000-000000000001";

fn at(seconds: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(seconds).unwrap()
}

fn headers(given: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<String> + Sync {
    move |name| given.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
}

fn none(_: &str) -> Option<String> {
    None
}

fn id() -> Option<NotificationId> {
    Some(ID.parse().unwrap())
}

#[test]
fn an_id_is_found_as_it_was_written_and_in_no_other_form() {
    for text in [ID.to_owned(), format!("<{ID}@mail.example.org>"), format!(" {ID}@x ")] {
        assert_eq!(id_in(&text), id(), "{text}");
    }
    for text in [
        "",
        "@",
        "<@>",
        "01890000-0000-7000-8000-00000000000A",
        &ID.replace('-', ""),
        &format!("{{{ID}}}"),
        "LRzXl_NHStOGhQ4kofSm_A@x",
    ] {
        assert_eq!(id_in(text), None, "{text}");
    }
}

/// The example of SendGrid's own helper libraries (sendgrid/sendgrid-python, test/unit/test_eventwebhook.py).
mod sendgrid {
    use super::*;

    const KEY: &str = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1flpVKS3GRqe62gw+2fNNRaINXvVpiglSI8eNEc6wEA3F+g==";
    const SIGNED: &[(&str, &str)] = &[
        ("x-twilio-email-event-webhook-timestamp", "1600112502"),
        (
            "x-twilio-email-event-webhook-signature",
            "MEUCIGHQVtGj+Y3LkG9fLcxf3qfI10QysgDWmMOVmxG0u6ZUAiEAyBiXDWzM+uOe5W0JuG+luQAbPIqHh89M15TluLtEZtM=",
        ),
    ];
    const BODY: &str = "[{\"email\":\"hello@world.com\",\"event\":\"dropped\",\"reason\":\"Bounced Address\",\
        \"sg_event_id\":\"ZHJvcC0xMDk5NDkxOS1MUnpYbF9OSFN0T0doUTRrb2ZTbV9BLTA\",\
        \"sg_message_id\":\"LRzXl_NHStOGhQ4kofSm_A.filterdrecv-p3mdw1-756b745b58-kmzbl-18-5F5FC76C-9.0\",\
        \"smtp-id\":\"<LRzXl_NHStOGhQ4kofSm_A@ismtpd0039p1iad1.sendgrid.net>\",\"timestamp\":1600112492}]\r\n";

    #[test]
    fn the_published_example_is_genuine_and_nothing_else_is() {
        let sendgrid = SendGrid::new(KEY).unwrap();
        let read = |body: &str, now| sendgrid.read(&headers(SIGNED), body.as_bytes(), at(now));
        let events = read(BODY, 1_600_112_600).unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!((events[0].name.as_str(), events[0].proof, events[0].id), ("dropped", Proof::Bounced, None));
        assert_eq!(events[0].words, "Bounced Address");
        assert_eq!(events[0].happened_at, Some(at(1_600_112_492)));
        let changed = BODY.replace("dropped", "delivered");
        assert!(matches!(read(&changed, 1_600_112_600), Err(Refused::Forged(_))));
        assert!(matches!(read(BODY, 1_600_112_502 + 3_601), Err(Refused::Forged(_))), "kept and sent again");
        assert!(matches!(sendgrid.read(&none, BODY.as_bytes(), at(1_600_112_600)), Err(Refused::Forged(_))));
        for wrong in ["", "MFkw", "AAAA", &KEY[..KEY.len() - 4]] {
            assert!(SendGrid::new(wrong).is_none(), "{wrong}");
        }
    }
}

/// The example of the Standard Webhooks specification and of Svix's libraries.
mod resend {
    use super::*;

    #[test]
    fn the_published_example_is_genuine_and_nothing_else_is() {
        let resend = Resend::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        const SIGNED: &[(&str, &str)] = &[
            ("svix-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            ("svix-timestamp", "1614265330"),
            ("svix-signature", "v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= v2,x"),
        ];
        let body = br#"{"test": 2432232314}"#;
        let events = resend.read(&headers(SIGNED), body, at(1_614_265_400)).unwrap();
        assert_eq!(
            (events[0].proof, events[0].reference.as_str()),
            (Proof::Inconclusive, "msg_p5jXN8AQM9LWM0D4loKWxJek")
        );
        assert!(matches!(
            resend.read(&headers(SIGNED), br#"{"test": 2432232315}"#, at(1_614_265_400)),
            Err(Refused::Forged(_))
        ));
        assert!(matches!(resend.read(&headers(SIGNED), body, at(1_614_269_000)), Err(Refused::Forged(_))));
        assert!(matches!(resend.read(&headers(SIGNED), body, at(1_614_265_000)), Err(Refused::Forged(_))));
        assert!(matches!(resend.read(&none, body, at(1_614_265_400)), Err(Refused::Forged(_))));
        assert!(Resend::new("whsec_").is_none() && Resend::new("whsec_!").is_none());
    }
}

mod mailgun {
    use super::*;

    /// The parts of a signature, signed by the key `key-example` (HMAC by `openssl dgst -sha256 -hmac`).
    fn body(event: &str) -> String {
        let (timestamp, token) = ("1529006854", "a8ce0edb2dd8301dee6c2405235584e45aa91d1e9f979f3de0");
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"key-example");
        let tag = ring::hmac::sign(&key, format!("{timestamp}{token}").as_bytes());
        let hex: String = tag.as_ref().iter().map(|octet| format!("{octet:02x}")).collect();
        format!(
            r#"{{"signature": {{"timestamp": "{timestamp}", "token": "{token}", "signature": "{hex}"}}, "event-data": {event}}}"#
        )
    }

    #[test]
    fn only_what_the_key_signed_lately_is_genuine() {
        let mailgun = Mailgun::new("key-example");
        let body = body(&format!(
            r#"{{"event": "failed", "severity": "permanent", "reason": "bounce", "timestamp": 1521233195.375624, "id": "G9Bn5sl1TC6nu79C8C0bwg",
                "delivery-status": {{"code": 605, "message": "", "description": "Not delivering to previously bounced address"}},
                "message": {{"headers": {{"message-id": "{ID}@mail.example.org"}}}}, "user-variables": {{}}}}"#
        ));
        let events = mailgun.read(body.as_bytes(), at(1_529_006_900)).unwrap();
        assert_eq!((events[0].proof, events[0].id), (Proof::Bounced, id()));
        assert_eq!(events[0].words, "Not delivering to previously bounced address");
        assert_eq!(events[0].reference, "G9Bn5sl1TC6nu79C8C0bwg 1521233195.375624");
        assert!(matches!(mailgun.read(body.as_bytes(), at(1_529_006_854 + 3_601)), Err(Refused::Forged(_))));
        assert!(matches!(Mailgun::new("another").read(body.as_bytes(), at(1_529_006_900)), Err(Refused::Forged(_))));
        assert!(matches!(mailgun.read(b"{}", at(1_529_006_900)), Err(Refused::Forged(_))));
        assert!(matches!(mailgun.read(b"{", at(1_529_006_900)), Err(Refused::Malformed(_))));
    }

    /// The examples of mailgun/mailgun-php (WebhookTest.php, whose time is a number) and of chubchenko/mailgun-tracking.
    #[test]
    fn the_published_examples_are_genuine() {
        for (key, time, token, signature, now) in [
            (
                "key-3ax6xnjp29jd6fds4gc373sgvjxteol0",
                "1403645220",
                "5egbgr1vjgqxtrnp65xfznchgdccwh5d6i09vijqi3whgowmn6",
                "9cfc5c41582e51246e73c88d34db3af0a3a2692a76fbab81492842f000256d33",
                1_403_645_300,
            ),
            (
                "key-qblubkqnkdn4lfes5oscf57ryllaia42",
                "\"1499697910\"",
                "b5751a49a024483da8d41c3684f98b8f",
                "374e0b1a3deeb57318c783d43ff71093fbf26406a452761dab91bf346a93b49e",
                1_499_698_000,
            ),
        ] {
            let body = format!(
                r#"{{"event-data": {{"event": "accepted"}}, "signature": {{"timestamp": {time}, "token": "{token}", "signature": "{signature}"}}}}"#
            );
            assert_eq!(Mailgun::new(key).read(body.as_bytes(), at(now)).unwrap()[0].proof, Proof::Accepted);
            let other = body.replace(token, "other");
            assert!(matches!(Mailgun::new(key).read(other.as_bytes(), at(now)), Err(Refused::Forged(_))));
        }
    }

    #[test]
    fn each_event_proves_what_mailgun_says_it_means() {
        for (event, proof) in [
            (r#"{"event": "accepted"}"#, Proof::Accepted),
            (r#"{"event": "delivered"}"#, Proof::Delivered),
            (r#"{"event": "failed", "severity": "temporary"}"#, Proof::Accepted),
            (r#"{"event": "failed", "severity": "permanent"}"#, Proof::Bounced),
            (r#"{"event": "rejected"}"#, Proof::Inconclusive),
            (r#"{"event": "complained"}"#, Proof::Delivered),
            (r#"{"event": "something new"}"#, Proof::Inconclusive),
            (r#"[]"#, Proof::Inconclusive),
        ] {
            let events = Mailgun::new("key-example").read(body(event).as_bytes(), at(1_529_006_900)).unwrap();
            assert_eq!(events[0].proof, proof, "{event}");
        }
    }
}

mod postmark {
    use super::*;

    const LOGIN: &[(&str, &str)] = &[("authorization", "Basic b3V0Ym94ZDpzZWNyZXQ=")];

    /// As on postmarkapp.com/email-webhooks, with the metadata of ours.
    const BOUNCE: &str = r#"{"RecordType": "Bounce", "ID": 42, "Type": "HardBounce", "TypeCode": 1, "Name": "Hard bounce", "Tag": "Test",
        "MessageID": "883953f4-6105-42a2-a16a-77a8eac79483", "Description": "The server was unable to deliver your message.",
        "Details": "Test bounce details", "Email": "john@example.com", "BouncedAt": "2014-08-01T13:28:10.2735393-04:00",
        "DumpAvailable": true, "Inactive": true, "CanActivate": true, "Subject": "Test subject",
        "Metadata": {"outboxd_id": "01890000-0000-7000-8000-000000000001"}}"#;

    #[test]
    fn only_who_knows_name_and_password_is_believed() {
        let postmark = Postmark::new("outboxd", "secret");
        let events = postmark.read(&headers(LOGIN), BOUNCE.as_bytes()).unwrap();
        assert_eq!(
            (events[0].proof, events[0].id, events[0].name.as_str()),
            (Proof::Bounced, id(), "Bounce HardBounce")
        );
        assert!(events[0].happened_at.is_some());
        for other in
            [Postmark::new("outboxd", "secret2"), Postmark::new("other", "secret"), Postmark::new("outboxd:secret", "")]
        {
            assert!(matches!(other.read(&headers(LOGIN), BOUNCE.as_bytes()), Err(Refused::Forged(_))));
        }
        assert!(matches!(postmark.read(&none, BOUNCE.as_bytes()), Err(Refused::Forged(_))));
        assert!(!format!("{postmark:?}").contains("secret"));
    }

    #[test]
    fn each_event_proves_what_postmark_says_it_means() {
        for (kind, proof) in [
            (r#""RecordType": "Delivery""#, Proof::Delivered),
            (r#""RecordType": "SpamComplaint", "Type": "SpamComplaint""#, Proof::Delivered),
            (r#""RecordType": "Bounce", "Type": "Transient""#, Proof::Accepted),
            (r#""RecordType": "Bounce", "Type": "SoftBounce""#, Proof::Bounced),
            (r#""RecordType": "Bounce", "Type": "SMTPApiError""#, Proof::Inconclusive),
            (r#""RecordType": "SubscriptionChange""#, Proof::Inconclusive),
        ] {
            let body = format!("{{{kind}}}");
            let events = Postmark::new("outboxd", "secret").read(&headers(LOGIN), body.as_bytes()).unwrap();
            assert_eq!(events[0].proof, proof, "{kind}");
        }
    }
}

mod ses {
    use super::*;

    const TOPIC: &str = "arn:aws:sns:us-east-1:123456789012:MyTopic";
    const CERTIFICATE: &[u8] = include_bytes!("tests/sns.pem");

    fn key() -> PublicKey {
        PublicKey::of_certificate(CERTIFICATE, OffsetDateTime::now_utc()).unwrap()
    }

    /// The example of docs.aws.amazon.com/ses/latest/dg/notification-examples.html, signed with OpenSSL by a certificate of ours.
    #[test]
    fn both_versions_of_the_signature_are_checked() {
        for body in [include_str!("tests/sns-v1.json"), include_str!("tests/sns-v2.json")] {
            let ses = Ses::new(TOPIC, Some(key()));
            let Heard::Events(events) = ses.read(body.as_bytes(), None).unwrap() else { panic!("events") };
            assert_eq!((events[0].proof, events[0].id, events[0].name.as_str()), (Proof::Bounced, id(), "Bounce"));
            assert_eq!(events[0].words, "smtp; 550 5.1.1 <jane@example.com>... User");
            for (from, to) in [("Permanent", "Transient"), ("MyTopic", "YourTopic"), ("15:00", "15:01")] {
                assert!(matches!(ses.read(body.replace(from, to).as_bytes(), None), Err(Refused::Forged(_))), "{from}");
            }
            let other = Ses::new("arn:aws:sns:us-east-1:123456789012:Other", Some(key()));
            assert_eq!(other.read(body.as_bytes(), None), Err(Refused::Forged("it is of another topic")));
            assert!(matches!(Ses::new(TOPIC, None).read(body.as_bytes(), None), Err(Refused::Forged(_))));
        }
    }

    /// Messages that Amazon itself signed, with its certificate of 2022 (aws/aws-sdk-ruby, message_verifier_spec.rb).
    #[test]
    fn what_amazon_itself_has_signed_is_genuine() {
        let certificate = include_bytes!("tests/amazon.pem");
        let key = PublicKey::of_certificate(certificate, at(1_659_043_438)).unwrap();
        for body in [include_str!("tests/amazon-v1.json"), include_str!("tests/amazon-v2.json")] {
            let message: Value = serde_json::from_str(body).unwrap();
            let topic = message["TopicArn"].as_str().unwrap();
            assert!(Ses::new(topic, None).certificate_url(body.as_bytes()).unwrap().is_some());
            let read = |body: &str| Ses::new(topic, Some(key.clone())).read(body.as_bytes(), None);
            // It says "Hello world", which is no event of SES: that is looked at only once it is known to be genuine.
            assert!(matches!(read(body), Err(Refused::Malformed(_))), "{:?}", read(body));
            assert!(matches!(read(&body.replace("Hello", "Hallo")), Err(Refused::Forged(_))));
        }
        assert!(PublicKey::of_certificate(certificate, OffsetDateTime::now_utc()).is_none(), "it has expired");
    }

    #[test]
    fn a_subscription_is_confirmed_at_amazons_own_address_alone() {
        let body = include_str!("tests/sns-confirm.json");
        let heard = Ses::new(TOPIC, Some(key())).read(body.as_bytes(), None).unwrap();
        assert!(
            matches!(heard, Heard::Confirm(url) if url.starts_with("https://sns.us-east-1.amazonaws.com/?Action=Confirm"))
        );
    }

    #[test]
    fn a_certificate_comes_from_amazon_or_from_nowhere() {
        let asked = |url: &str| {
            let body = serde_json::json!({ "TopicArn": TOPIC, "SigningCertURL": url }).to_string();
            Ses::new(TOPIC, None).certificate_url(body.as_bytes()).ok().flatten()
        };
        let good = "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-f3ecfb72.pem";
        assert_eq!(asked(good).as_deref(), Some(good));
        let china = "arn:aws-cn:sns:cn-north-1:1:T";
        let body = serde_json::json!({ "TopicArn": china,
            "SigningCertURL": "https://sns.cn-north-1.amazonaws.com.cn/SimpleNotificationService-1.pem" });
        assert!(Ses::new(china, None).certificate_url(body.to_string().as_bytes()).is_ok());
        for bad in [
            "http://sns.us-east-1.amazonaws.com/SimpleNotificationService-1.pem",
            "https://sns.us-east-1.amazonaws.com.evil.example/SimpleNotificationService-1.pem",
            "https://evil.example/sns.us-east-1.amazonaws.com/SimpleNotificationService-1.pem",
            "https://sns.evil.example#.amazonaws.com/SimpleNotificationService-1.pem",
            "https://sns.@evil.example/.amazonaws.com/SimpleNotificationService-1.pem",
            "https://sns.x:443@evil.amazonaws.com/SimpleNotificationService-1.pem",
            "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-1.pem?x",
            "https://sns.s3.amazonaws.com/SimpleNotificationService-1.pem",
            "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-1.pem",
            "https://sns.us-east-1.amazonaws.com/x/../SimpleNotificationService-1.pem",
            "https://sns..amazonaws.com/SimpleNotificationService-1.pem",
            "https://sns.a.b.amazonaws.com/SimpleNotificationService-1.pem",
            "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-1",
            "",
        ] {
            assert_eq!(asked(bad), None, "{bad}");
        }
        let other = serde_json::json!({ "TopicArn": "x", "SigningCertURL": "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-1.pem" });
        assert!(
            Ses::new(TOPIC, None).certificate_url(other.to_string().as_bytes()).is_err(),
            "nothing is fetched for another topic"
        );
        assert!(PublicKey::of_certificate(b"-----BEGIN CERTIFICATE-----", OffsetDateTime::now_utc()).is_none());
        assert!(PublicKey::of_certificate(CERTIFICATE, at(0)).is_none(), "not valid yet");
    }
}
