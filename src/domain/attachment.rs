//! The files that go with a notification, from the database's JSON to bytes.
//!
//! No refusal may repeat a file's name or content.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};

use super::content::{Invalid, limits};

/// Standard base64, with or without padding and as lenient about the last bits as PostgreSQL's `decode`, so that nothing
/// that could be enqueued is refused here.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// One file.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Attachment {
    /// Without control characters and path separators.
    pub(crate) filename: String,
    /// A media type, perhaps with parameters (RFC 2045, 5.1), neither `multipart` nor `message`.
    pub(crate) content_type: String,
    /// The content, decoded.
    pub(crate) content: Vec<u8>,
}

/// Takes an array of `{"filename", "content_type", "content"}` objects.
///
/// # Errors
///
/// [`Invalid`], which names the place in the array.
pub(crate) fn parse_all(value: Value) -> Result<Vec<Attachment>, Invalid> {
    let Value::Array(objects) = value else {
        return Err(Invalid::new("attachments", "is not an array; give an array of objects, or an empty one"));
    };
    if objects.len() > limits::ATTACHMENTS_MAX_COUNT {
        let problem = format!("has more than {} files; send fewer", limits::ATTACHMENTS_MAX_COUNT);
        return Err(Invalid::new("attachments", problem));
    }
    let mut room = limits::ATTACHMENTS_MAX_OCTETS;
    let mut attachments = Vec::with_capacity(objects.len());
    for (index, object) in objects.into_iter().enumerate() {
        let attachment = parse(index, object)?;
        room = room.checked_sub(attachment.content.len()).ok_or_else(|| {
            let max = limits::ATTACHMENTS_MAX_OCTETS;
            Invalid::new("attachments", format!("are longer than {max} octets together; send a link instead"))
        })?;
        attachments.push(attachment);
    }
    Ok(attachments)
}

fn parse(index: usize, value: Value) -> Result<Attachment, Invalid> {
    const KEYS: &str = "give an object with `filename`, `content_type` and `content`";
    let Value::Object(mut object) = value else {
        return Err(Invalid::new(format!("attachments[{index}]"), format!("is not an object; {KEYS}")));
    };
    let mut take = |key: &str| take_text(&mut object, index, key);
    let (filename, content_type, content) = (take("filename")?, take("content_type")?, take("content")?);
    if !object.is_empty() {
        return Err(Invalid::new(format!("attachments[{index}]"), format!("has a key that is not known; {KEYS}")));
    }
    let refuse = |key: &str, problem: &str| Err(Invalid::new(format!("attachments[{index}].{key}"), problem));
    if filename.trim().is_empty() || filename.len() > limits::FILENAME_MAX_OCTETS {
        return refuse("filename", "is blank or longer than 255 octets; give a file's name");
    }
    if filename.contains(|c: char| c.is_control() || c == '/' || c == '\\') {
        return refuse(
            "filename",
            "has a control character or a path separator; give a file's name without its folder",
        );
    }
    if content_type.len() > limits::CONTENT_TYPE_MAX_OCTETS || !is_media_type(&content_type) {
        return refuse("content_type", "is not a media type (RFC 2045, 5.1); give one such as `application/pdf`");
    }
    let composite = |name: &str| content_type.get(..name.len()).is_some_and(|it| it.eq_ignore_ascii_case(name));
    if composite("multipart/") || composite("message/") {
        return refuse(
            "content_type",
            "is composite and may not be encoded (RFC 2045, 6.4); use `application/octet-stream`",
        );
    }
    match decode(&content) {
        Some(content) => Ok(Attachment { filename, content_type, content }),
        None => refuse("content", "is not base64 (RFC 4648, 4); encode the file's bytes so"),
    }
}

/// The bytes that base64 stands for; `None` for what is none. PostgreSQL's encode(…, 'base64') breaks lines.
pub(super) fn decode(base64: &str) -> Option<Vec<u8>> {
    if base64.bytes().any(|byte| byte.is_ascii_whitespace()) {
        return BASE64.decode(base64.split_ascii_whitespace().collect::<String>()).ok();
    }
    BASE64.decode(base64).ok()
}

fn take_text(object: &mut Map<String, Value>, index: usize, key: &str) -> Result<String, Invalid> {
    match object.remove(key) {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) | None => {
            Err(Invalid::new(format!("attachments[{index}].{key}"), "is missing or not a string; give it as one"))
        }
    }
}

/// Whether `text` is `type/subtype` with any parameters (RFC 2045, 5.1), without comments.
fn is_media_type(text: &str) -> bool {
    let Some((kind, rest)) = text.split_once('/') else { return false };
    let (subtype, mut rest) = split_token(rest);
    if !is_token(kind) || subtype.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let Some(parameter) = rest.trim_start_matches(' ').strip_prefix(';') else { return false };
        let (name, after) = split_token(parameter.trim_start_matches(' '));
        let Some(value) = after.strip_prefix('=').filter(|_| !name.is_empty()) else { return false };
        let after = match value.strip_prefix('"') {
            Some(quoted) => after_quoted(quoted),
            None => Some(split_token(value)).filter(|(token, _)| !token.is_empty()).map(|(_, after)| after),
        };
        let Some(after) = after else { return false };
        rest = after;
    }
    true
}

/// What follows a quoted string of printable ASCII, whose opening quote is gone.
fn after_quoted(text: &str) -> Option<&str> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return text.get(at + 1..),
            ' '..='~' => escaped = c == '\\' && !escaped,
            _ => return None,
        }
    }
    None
}

fn split_token(text: &str) -> (&str, &str) {
    let end = text.find(|c| !is_token_char(c)).unwrap_or(text.len());
    text.split_at(end)
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_token_char)
}

fn is_token_char(c: char) -> bool {
    c.is_ascii_graphic() && !"()<>@,;:\\\"/[]?=".contains(c)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(value: Value) -> String {
        parse_all(value).map(|attachments| attachments.len()).unwrap_err().to_string()
    }

    fn file(filename: &str, content_type: &str, content: &str) -> Value {
        json!({"filename": filename, "content_type": content_type, "content": content})
    }

    #[test]
    fn a_file_is_decoded_with_or_without_padding_and_line_breaks() {
        for content in ["aGVsbG8=", "aGVsbG9=", "aGVsbG8", "aGVs\nbG8=\n", " aGVs\r\nbG8"] {
            let files = parse_all(json!([file("a b.txt", "text/plain", content)])).unwrap();
            assert_eq!(files[0].content, b"hello");
        }
        assert!(parse_all(json!([file("empty", "text/plain", "")])).unwrap()[0].content.is_empty());
    }

    #[test]
    fn every_refusal_names_the_place() {
        for (value, begins) in [
            (json!(null), "attachments: is not an array"),
            (json!({}), "attachments: is not an array"),
            (json!(["x"]), "attachments[0]: is not an object"),
            (json!([{}]), "attachments[0].filename: is missing"),
            (json!([{"filename": 1}]), "attachments[0].filename: is missing or not a string"),
            (json!([{"filename": "a", "content_type": "a/b"}]), "attachments[0].content: is missing"),
            (
                json!([file("a", "a/b", ""), {"filename": "a", "content_type": "a/b", "content": "", "secret": 1}]),
                "attachments[1]: has a key that is not known",
            ),
            (json!([file("", "a/b", "")]), "attachments[0].filename: is blank"),
            (json!([file(&"a".repeat(256), "a/b", "")]), "attachments[0].filename: is blank or longer"),
            (json!([file("a\r\nX: y", "a/b", "")]), "attachments[0].filename: has a control character"),
            (json!([file("../../etc/passwd", "a/b", "")]), "attachments[0].filename: has a control"),
            (json!([file("a\\b", "a/b", "")]), "attachments[0].filename: has a control"),
            (json!([file("a", "pdf", "")]), "attachments[0].content_type: is not a media type"),
            (json!([file("a", "a/b\r\nX: y", "")]), "attachments[0].content_type: is not a media type"),
            (json!([file("a", "message/rfc822", "")]), "attachments[0].content_type: is composite"),
            (json!([file("a", "Multipart/mixed", "")]), "attachments[0].content_type: is composite"),
            (json!([file("a", "a/b", "@@@@")]), "attachments[0].content: is not base64"),
        ] {
            let problem = refused(value);
            assert!(problem.starts_with(begins), "{problem}");
            assert!(!problem.contains("secret") && !problem.contains("passwd"), "{problem}");
        }
    }

    #[test]
    fn more_files_or_octets_than_the_limits_are_refused() {
        let files = |count: usize| Value::Array(vec![file("a", "a/b", ""); count]);
        assert!(parse_all(files(limits::ATTACHMENTS_MAX_COUNT)).is_ok());
        assert!(refused(files(limits::ATTACHMENTS_MAX_COUNT + 1)).starts_with("attachments: has more than 20"));

        let encoded = |octets: usize| file("a", "a/b", &BASE64.encode(vec![0; octets]));
        let half = limits::ATTACHMENTS_MAX_OCTETS / 2;
        assert!(parse_all(json!([encoded(half), encoded(half)])).is_ok());
        assert!(refused(json!([encoded(half), encoded(half + 1)])).starts_with("attachments: are longer than"));
    }

    #[test]
    fn media_types_are_taken_with_well_formed_parameters_only() {
        for good in [
            "text/plain",
            "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
            "text/csv; charset=utf-8",
            "text/calendar;method=REQUEST; charset=\"utf-8\"",
            "application/x; name=\"a \\\" b; c\"",
        ] {
            assert!(is_media_type(good), "{good}");
        }
        for bad in [
            "",
            "/",
            "text/",
            "/plain",
            "text",
            "te xt/plain",
            "text/plain;",
            "text/plain; charset",
            "text/plain; =x",
            "text/plain; a=",
            "text/plain; a=\"x",
            "text/plain; a=\"x\\\"",
            "text/plain x",
            "text/plain; a=é",
            "täxt/plain",
        ] {
            assert!(!is_media_type(bad), "{bad}");
        }
    }
}
