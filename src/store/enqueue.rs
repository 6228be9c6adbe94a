//! The producer's side: storing a notification in the caller's own transaction.
//!
//! This is `outboxd.enqueue` (see `migrations/`), which producers in any language call; the Rust form adds nothing to
//! it, so the two cannot differ.

use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::ids::NotificationId;

/// A notification to be. Only the first four fields and one of the bodies are needed; see `docs/producers.md`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewNotification {
    /// The account that it belongs to: accounts take turns, and dedup keys are an account's own.
    pub account_id: String,
    /// The address that it comes from (RFC 5321 `MAIL FROM` and RFC 5322 `From`).
    pub sender: String,
    /// The address that it goes to.
    pub recipient: String,
    /// The subject.
    pub subject: String,
    /// The plain text.
    #[serde(default)]
    pub body_text: Option<String>,
    /// The HTML.
    #[serde(default)]
    pub body_html: Option<String>,
    /// The name shown with the sender.
    #[serde(default)]
    pub sender_name: Option<String>,
    /// The name shown with the recipient.
    #[serde(default)]
    pub recipient_name: Option<String>,
    /// Where answers go.
    #[serde(default)]
    pub reply_to: Option<String>,
    /// Further headers, in order.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// Files.
    #[serde(default)]
    pub attachments: Vec<NewAttachment>,
    /// An https or mailto URI (RFC 2369).
    #[serde(default)]
    pub list_unsubscribe: Option<String>,
    /// Whether that URI takes a one-click POST (RFC 8058).
    #[serde(default)]
    pub list_unsubscribe_post: bool,
    /// The configured route; `default` when left out.
    #[serde(default)]
    pub route: Option<String>,
    /// 0 (first) to 9 (last) among the account's own; 5 when left out.
    #[serde(default)]
    pub priority: Option<i32>,
    /// Not to be sent before this time.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub not_before: Option<OffsetDateTime>,
    /// Not to be sent after this time.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub expires_at: Option<OffsetDateTime>,
    /// The producer's key for this intent: the same key and content give the same id.
    #[serde(default)]
    pub dedup_key: Option<String>,
    /// The producer's own name for the message that this is about.
    #[serde(default)]
    pub message_ref: Option<String>,
}

/// A file to be sent along.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewAttachment {
    /// The name that the recipient sees.
    pub filename: String,
    /// The media type, such as `application/pdf`.
    pub content_type: String,
    /// The content in base64 (RFC 4648, 4).
    pub content: String,
}

/// Why a notification was not stored. The caller's transaction can only be rolled back then, as after any SQL error.
#[derive(Debug, thiserror::Error)]
pub enum EnqueueError {
    /// A value is refused.
    #[error("{problem} {remedy}")]
    Invalid {
        /// The field, such as `recipient` or `attachments[0].content`.
        field: String,
        /// The field and what is wrong with it.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// The dedup key was used for other content.
    #[error("{problem} {remedy}")]
    KeyReused {
        /// Which notification has it.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// The database failed.
    #[error(transparent)]
    Database(sqlx::Error),
}

impl From<sqlx::Error> for EnqueueError {
    fn from(error: sqlx::Error) -> Self {
        let Some(refusal) =
            error.as_database_error().and_then(|e| e.try_downcast_ref::<sqlx::postgres::PgDatabaseError>())
        else {
            return Self::Database(error);
        };
        let problem = refusal.message().to_owned();
        let remedy = refusal.hint().unwrap_or_default().to_owned();
        match refusal.code() {
            "OB001" => Self::Invalid { field: refusal.column().unwrap_or_default().to_owned(), problem, remedy },
            "OB002" => Self::KeyReused { problem, remedy },
            _ => Self::Database(error),
        }
    }
}

/// Stores a notification in the caller's transaction and returns its id; it exists if and only if that transaction
/// commits. With a `dedup_key` that was used before for the same content it stores nothing and returns the first id.
///
/// # Errors
/// [`EnqueueError::Invalid`] names the field, [`EnqueueError::KeyReused`] the notification that has the key.
pub async fn enqueue(conn: &mut PgConnection, new: &NewNotification) -> Result<NotificationId, EnqueueError> {
    refuse_nul(new)?;
    let headers = serde_json::json!(new.headers);
    let attachments = serde_json::json!(new.attachments);
    let id: Uuid = sqlx::query_scalar!(
        r#"
        select outboxd.enqueue(
            account_id => $1, sender => $2, recipient => $3, subject => $4, body_text => $5, body_html => $6,
            sender_name => $7, recipient_name => $8, reply_to => $9, headers => $10, attachments => $11,
            list_unsubscribe => $12, list_unsubscribe_post => $13, route => coalesce($14, 'default'),
            priority => coalesce($15, 5), not_before => $16, expires_at => $17, dedup_key => $18, message_ref => $19) as "id!"
        "#,
        new.account_id,
        new.sender,
        new.recipient,
        new.subject,
        new.body_text,
        new.body_html,
        new.sender_name,
        new.recipient_name,
        new.reply_to,
        headers,
        attachments,
        new.list_unsubscribe,
        new.list_unsubscribe_post,
        new.route,
        new.priority,
        new.not_before,
        new.expires_at,
        new.dedup_key,
        new.message_ref,
    )
    .fetch_one(conn)
    .await?;
    Ok(NotificationId(id))
}

/// PostgreSQL's `text` and `jsonb` cannot hold a NUL, so it never gets as far as the SQL function, which would name the
/// field; the statement fails without a word of what is wrong.
fn refuse_nul(new: &NewNotification) -> Result<(), EnqueueError> {
    let texts = [
        ("account_id", Some(&new.account_id)),
        ("sender", Some(&new.sender)),
        ("recipient", Some(&new.recipient)),
        ("subject", Some(&new.subject)),
        ("body_text", new.body_text.as_ref()),
        ("body_html", new.body_html.as_ref()),
        ("sender_name", new.sender_name.as_ref()),
        ("recipient_name", new.recipient_name.as_ref()),
        ("reply_to", new.reply_to.as_ref()),
        ("list_unsubscribe", new.list_unsubscribe.as_ref()),
        ("route", new.route.as_ref()),
        ("dedup_key", new.dedup_key.as_ref()),
        ("message_ref", new.message_ref.as_ref()),
    ];
    let texts = texts.into_iter().filter_map(|(field, text)| Some((field.to_owned(), text?)));
    let headers = new.headers.iter().enumerate();
    let headers = headers.flat_map(|(at, (name, value))| [name, value].map(|text| (format!("headers[{at}]"), text)));
    let attachments = new.attachments.iter().enumerate().flat_map(|(at, file)| {
        [("filename", &file.filename), ("content_type", &file.content_type), ("content", &file.content)]
            .map(|(part, text)| (format!("attachments[{at}].{part}"), text))
    });
    match texts.chain(headers).chain(attachments).find(|(_, text)| text.contains('\0')) {
        None => Ok(()),
        Some((field, _)) => Err(EnqueueError::Invalid {
            problem: format!("{field}: has a NUL character"),
            remedy: "Remove it: PostgreSQL cannot store one.".to_owned(),
            field,
        }),
    }
}
