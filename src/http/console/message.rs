//! What a notification says: its HTML, shut in a frame that may do nothing, and the bytes as they went out.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, html};
use uuid::Uuid;

use super::Console;
use super::page::Failure;
use crate::domain::content::{Content, RawContent};
use crate::domain::ids::NotificationId;
use crate::domain::operator::Role;
use crate::mail::compose::{Identity, compose};
use crate::store::story;

/// Nothing but its own style and the pictures that it carries.
const POLICY: &str = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'";

async fn content(
    console: &Console,
    headers: &HeaderMap,
    id: Result<Path<Uuid>, PathRejection>,
) -> Result<(RawContent, Option<String>), Failure> {
    let missing = || Failure::missing("There is no such notification, or its content was erased.");
    let Path(id) = id.map_err(|_| missing())?;
    let session = console.enter(headers, &format!("/notifications/{id}")).await?;
    session.may(Role::Operator)?;
    let mut tx = console.desk.reading().await?;
    let content = story::content(&mut tx, NotificationId(id)).await?.ok_or_else(missing)?;
    let story = story::story(&mut tx, NotificationId(id)).await?;
    // The last attempt that had begun is the last that anything left of.
    let attempts = story.map(|story| story.attempts).unwrap_or_default();
    let sent = attempts.iter().rev().find(|attempt| attempt.begun_at.is_some()).or(attempts.last());
    Ok((content, sent.map(|attempt| attempt.provider.clone())))
}

/// The message as a person sees it.
pub(super) async fn html(
    State(console): State<Console>,
    headers: HeaderMap,
    id: Result<Path<Uuid>, PathRejection>,
) -> Result<Response, Failure> {
    let (content, _) = content(&console, &headers, id).await?;
    let page = match (content.body_html, content.body_text) {
        (Some(html), _) => html,
        (None, text) => {
            html! { (DOCTYPE) pre style="white-space: pre-wrap; font: 15px sans-serif" { (text.unwrap_or_default()) } }
                .into_string()
        }
    };
    let headers = [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, POLICY)];
    Ok((headers, without_links(&page)).into_response())
}

/// The HTML with its `link` elements made elements that mean nothing: a browser connects to where a `preconnect` points whatever the
/// policy says.
fn without_links(html: &str) -> String {
    let mut shown = String::with_capacity(html.len());
    let mut rest = html;
    while let Some(at) = rest.as_bytes().windows(5).position(|five| five.eq_ignore_ascii_case(b"<link")) {
        shown.push_str(&rest[..at]);
        shown.push_str("<x-link");
        rest = &rest[at + 5..];
    }
    shown.push_str(rest);
    shown
}

/// The bytes that went out, or would, to the provider of the last attempt.
pub(super) async fn source(
    State(console): State<Console>,
    headers: HeaderMap,
    id: Result<Path<Uuid>, PathRejection>,
) -> Result<Response, Failure> {
    let (content, provider) = content(&console, &headers, id).await?;
    let identity: Option<&Identity> =
        provider.and_then(|provider| console.identities.get(&provider)).or_else(|| console.identities.values().next());
    let Some(identity) = identity else {
        return Err(Failure::missing(
            "This process knows no provider, and so not how its messages carry their identity: configure it.",
        ));
    };
    let name = content.id;
    let composed = Content::parse(content).and_then(|content| compose(&content, identity));
    let composed = composed.map_err(|invalid| Failure::bad(&format!("No message can be made of it: {invalid}")))?;
    let disposition = format!("inline; filename=\"{name}.eml\"");
    Ok((
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8".to_owned()), (header::CONTENT_DISPOSITION, disposition)],
        composed.bytes,
    )
        .into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_element_is_none_any_more_and_nothing_else_changes() {
        let html = "<LINK rel=preconnect href=//x>é<link><a href=//x>link</a><<link";
        assert_eq!(without_links(html), "<x-link rel=preconnect href=//x>é<x-link><a href=//x>link</a><<x-link");
        assert_eq!(without_links("<lin"), "<lin");
    }
}
