//! Amazon SES, whose events come through SNS (docs.aws.amazon.com/ses/latest/dg/event-publishing-retrieving-sns-contents.html),
//! signed as docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html says.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{
    RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey, VerificationAlgorithm,
};
use serde_json::Value;
use time::OffsetDateTime;
use x509_parser::pem::parse_x509_pem;
use x509_parser::time::ASN1Time;

use super::{Event, Heard, ID_KEY, Refused, first_id, json, text, timestamp};
use crate::domain::evidence::Proof;

/// The RSA key of a certificate that SNS signs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey(Vec<u8>);

impl PublicKey {
    /// Takes the key of a certificate in PEM that is valid at `now`; `None` where it is none, or not.
    #[must_use]
    pub fn of_certificate(pem: &[u8], now: OffsetDateTime) -> Option<Self> {
        let (_, pem) = parse_x509_pem(pem).ok()?;
        let certificate = pem.parse_x509().ok()?;
        let now = ASN1Time::from_timestamp(now.unix_timestamp()).ok()?;
        let valid = certificate.validity().is_valid_at(now);
        valid.then(|| Self(certificate.public_key().subject_public_key.data.to_vec()))
    }
}

/// One topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ses {
    topic_arn: String,
    key: Option<PublicKey>,
}

impl Ses {
    /// Takes the topic's ARN, and the key of the certificate that signs where it is not to be fetched from Amazon.
    #[must_use]
    pub fn new(topic_arn: &str, key: Option<PublicKey>) -> Self {
        Self { topic_arn: topic_arn.to_owned(), key }
    }

    /// Where the certificate of a request is to be had; `None` where the key is known. Only addresses of Amazon's SNS are given.
    ///
    /// # Errors
    /// When the request names another place.
    pub fn certificate_url(&self, body: &[u8]) -> Result<Option<String>, Refused> {
        if self.key.is_some() {
            return Ok(None);
        }
        let body = json(body)?;
        // Before anything is fetched: who does not know the topic gets nothing done.
        if text(&body, "/TopicArn") != self.topic_arn {
            return Err(Refused::Forged("it is of another topic"));
        }
        let url = text(&body, "/SigningCertURL");
        let genuine = is_of_sns(url) && url.ends_with(".pem") && !url.contains(['?', '#']);
        if genuine {
            Ok(Some(url.to_owned()))
        } else {
            Err(Refused::Forged("the certificate is not one of Amazon SNS"))
        }
    }

    pub(super) fn read(&self, body: &[u8], key: Option<&PublicKey>) -> Result<Heard, Refused> {
        let body = json(body)?;
        let Some(key) = self.key.as_ref().or(key) else {
            return Err(Refused::Forged("the certificate is not known"));
        };
        let algorithm: &dyn VerificationAlgorithm = match text(&body, "/SignatureVersion") {
            "1" => &RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
            "2" => &RSA_PKCS1_2048_8192_SHA256,
            _ => return Err(Refused::Forged("it is not signed")),
        };
        let kind = text(&body, "/Type");
        let signed = signed(&body, kind);
        let genuine = STANDARD.decode(text(&body, "/Signature")).is_ok_and(|signature| {
            UnparsedPublicKey::new(algorithm, &key.0).verify(signed.as_bytes(), &signature).is_ok()
        });
        if !genuine {
            return Err(Refused::Forged("the signature is not of this message by this certificate"));
        }
        if text(&body, "/TopicArn") != self.topic_arn {
            return Err(Refused::Forged("it is of another topic"));
        }
        match kind {
            "Notification" => {
                let message = json(text(&body, "/Message").as_bytes())?;
                Ok(Heard::Events(event(&message).into_iter().collect()))
            }
            "SubscriptionConfirmation" if is_of_sns(text(&body, "/SubscribeURL")) => {
                Ok(Heard::Confirm(text(&body, "/SubscribeURL").to_owned()))
            }
            _ => Ok(Heard::Events(Vec::new())),
        }
    }
}

/// Whether an address is of Amazon SNS, over TLS, and of nobody who looks like it.
fn is_of_sns(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("https://sns.") else { return false };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let region = host.strip_suffix(".amazonaws.com").or_else(|| host.strip_suffix(".amazonaws.com.cn"));
    let plain = |octet: u8| octet.is_ascii_lowercase() || octet.is_ascii_digit() || octet == b'-';
    region.is_some_and(|region| !region.is_empty() && region.bytes().all(plain))
}

/// What is signed: names and values, a line each, in the order of the names.
fn signed(body: &Value, kind: &str) -> String {
    let names: &[&str] = if kind == "Notification" {
        &["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"]
    } else {
        &["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
    };
    let lines = names.iter().filter_map(|name| Some(format!("{name}\n{}\n", body.get(*name)?.as_str()?)));
    lines.collect()
}

/// The event; `None` for what SNS or SES says of itself, such as that a topic was set up.
fn event(message: &Value) -> Option<Event> {
    // Event publishing calls it by one name, feedback notifications by the other.
    let name =
        [text(message, "/eventType"), text(message, "/notificationType")].into_iter().find(|name| !name.is_empty())?;
    let proof = match name {
        "Send" | "DeliveryDelay" => Proof::Accepted,
        "Delivery" | "Open" | "Click" | "Complaint" | "Subscription" => Proof::Delivered,
        // A soft bounce is told once SES has stopped trying; a rejected one was taken, found to be harmful, and not sent.
        "Bounce" | "Reject" => Proof::Bounced,
        _ => Proof::Inconclusive,
    };
    let part = match name {
        "DeliveryDelay" => "deliveryDelay".to_owned(),
        name => name.to_ascii_lowercase(),
    };
    let tags = message.pointer(&format!("/mail/tags/{ID_KEY}")).and_then(Value::as_array).into_iter().flatten();
    let headers = message.pointer("/mail/headers").and_then(Value::as_array).into_iter().flatten();
    let ids = tags.filter_map(Value::as_str).chain(headers.map(|header| text(header, "/value")));
    let at = [text(message, &format!("/{part}/timestamp")), text(message, "/mail/timestamp")];
    let words = [
        text(message, "/bounce/bouncedRecipients/0/diagnosticCode"),
        text(message, "/delivery/smtpResponse"),
        text(message, "/reject/reason"),
        text(message, "/deliveryDelay/delayedRecipients/0/diagnosticCode"),
    ];
    Some(Event {
        id: first_id(ids),
        proof,
        name: name.to_owned(),
        reference: format!(
            "{} {name} {}",
            text(message, "/mail/messageId"),
            text(message, &format!("/{part}/feedbackId"))
        ),
        happened_at: at.into_iter().find(|at| !at.is_empty()).and_then(timestamp),
        words: words.into_iter().find(|words| !words.is_empty()).unwrap_or_default().to_owned(),
    })
}
