//! What a notification says, parsed once: a [`Content`] can be made into a message.

use crate::domain::ids::NotificationId;

/// Exactly as the database gives it.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "placeholder")]
pub struct RawContent {
    pub id: NotificationId,
    pub created_at: time::OffsetDateTime,
    pub sender: String,
    pub sender_name: Option<String>,
    pub recipient: String,
    pub recipient_name: Option<String>,
    pub reply_to: Option<String>,
    pub subject: String,
    pub body_text: Option<String>,
    pub body_html: Option<String>,
    pub headers: serde_json::Value,
    pub attachments: serde_json::Value,
    pub list_unsubscribe: Option<String>,
    pub list_unsubscribe_post: bool,
}
