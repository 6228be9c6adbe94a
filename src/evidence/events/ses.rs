//! Amazon SES, whose events come through SNS (docs.aws.amazon.com/ses/latest/dg/event-publishing-retrieving-sns-contents.html),
//! signed as docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html says.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{
    RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;
use serde_json::Value;
use time::OffsetDateTime;
use x509_parser::pem::parse_x509_pem;
use x509_parser::time::ASN1Time;

use super::{Event, Heard, ID_KEY, Refused, first_id, id_header, json, text, timestamp};
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
    /// Where Amazon SNS of the topic's region is, and nobody else.
    place: String,
    key: Option<PublicKey>,
}

/// What SNS wraps a message in: the fields that are signed or looked at. Everything else is passed over, and nothing is kept of it:
/// whoever sends it is not known yet.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Envelope {
    r#type: String,
    message_id: String,
    topic_arn: String,
    subject: Option<String>,
    message: String,
    timestamp: String,
    token: Option<String>,
    signature_version: String,
    signature: String,
    #[serde(rename = "SigningCertURL")]
    signing_cert_url: String,
    #[serde(rename = "SubscribeURL")]
    subscribe_url: Option<String>,
}

impl Envelope {
    fn read(body: &[u8]) -> Result<Self, Refused> {
        serde_json::from_slice(body).map_err(|_| Refused::Malformed("the body is no message of SNS"))
    }

    /// What is signed: names and values, a line each, in the order of the names.
    fn signed(&self) -> String {
        let subscription = self.r#type != "Notification";
        let fields = [
            ("Message", Some(self.message.as_str())),
            ("MessageId", Some(self.message_id.as_str())),
            ("Subject", self.subject.as_deref().filter(|_| !subscription)),
            ("SubscribeURL", self.subscribe_url.as_deref().filter(|_| subscription)),
            ("Timestamp", Some(self.timestamp.as_str())),
            ("Token", self.token.as_deref().filter(|_| subscription)),
            ("TopicArn", Some(self.topic_arn.as_str())),
            ("Type", Some(self.r#type.as_str())),
        ];
        fields.into_iter().filter_map(|(name, value)| Some(format!("{name}\n{}\n", value?))).collect()
    }
}

impl Ses {
    /// Takes the topic's ARN, and the key of the certificate that signs where it is not to be fetched from Amazon.
    #[must_use]
    pub fn new(topic_arn: &str, key: Option<PublicKey>) -> Self {
        // arn:PARTITION:sns:REGION:ACCOUNT:NAME
        let mut parts = topic_arn.split(':').skip(1);
        let (partition, _, region) = (parts.next().unwrap_or_default(), parts.next(), parts.next().unwrap_or_default());
        let country = if partition == "aws-cn" { ".cn" } else { "" };
        Self { topic_arn: topic_arn.to_owned(), place: format!("https://sns.{region}.amazonaws.com{country}/"), key }
    }

    /// Where the certificate of a request is to be had; `None` where the key is known. Only addresses of Amazon's SNS are given.
    ///
    /// # Errors
    /// When the request names another place.
    pub fn certificate_url(&self, body: &[u8]) -> Result<Option<String>, Refused> {
        if self.key.is_some() {
            return Ok(None);
        }
        let envelope = Envelope::read(body)?;
        // Before anything is fetched: who does not know the topic gets nothing done.
        if envelope.topic_arn != self.topic_arn {
            return Err(Refused::Forged("it is of another topic"));
        }
        let url = envelope.signing_cert_url;
        let name = url.strip_prefix(&self.place).unwrap_or_default();
        let plain = name.bytes().all(|octet| octet.is_ascii_alphanumeric() || octet == b'-' || octet == b'.');
        let genuine = name.starts_with("SimpleNotificationService-") && name.ends_with(".pem") && plain;
        if genuine { Ok(Some(url)) } else { Err(Refused::Forged("the certificate is not one of Amazon SNS")) }
    }

    pub(super) fn read(&self, body: &[u8], key: Option<&PublicKey>) -> Result<Heard, Refused> {
        let envelope = Envelope::read(body)?;
        let Some(key) = self.key.as_ref().or(key) else {
            return Err(Refused::Forged("the certificate is not known"));
        };
        let algorithm: &dyn VerificationAlgorithm = match envelope.signature_version.as_str() {
            "1" => &RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
            "2" => &RSA_PKCS1_2048_8192_SHA256,
            _ => return Err(Refused::Forged("it is not signed")),
        };
        let signed = envelope.signed();
        let genuine = STANDARD.decode(&envelope.signature).is_ok_and(|signature| {
            UnparsedPublicKey::new(algorithm, &key.0).verify(signed.as_bytes(), &signature).is_ok()
        });
        if !genuine {
            return Err(Refused::Forged("the signature is not of this message by this certificate"));
        }
        if envelope.topic_arn != self.topic_arn {
            return Err(Refused::Forged("it is of another topic"));
        }
        match (envelope.r#type.as_str(), envelope.subscribe_url) {
            ("Notification", _) => {
                let message = json(envelope.message.as_bytes())?;
                Ok(Heard::Events(event(&message).into_iter().collect()))
            }
            ("SubscriptionConfirmation", Some(url)) if url.starts_with(&self.place) => Ok(Heard::Confirm(url)),
            _ => Ok(Heard::Events(Vec::new())),
        }
    }
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
    let ids = tags.filter_map(Value::as_str).chain(headers.filter_map(id_header));
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
