//! Tokens: made, looked up by their hash, revoked. The tokens themselves are never here.

use sqlx::postgres::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::token::{Scope, Token};

use super::{Line, StoreError};

/// Who is asking, as a valid token proves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The account.
    pub account_id: String,
    /// The token, by its label, or its id where it has none.
    pub token: String,
    /// What the token allows. A scope that a later release knows is left out.
    pub scopes: Vec<Scope>,
    /// The database's time, which decides how old a request key is.
    pub now: OffsetDateTime,
}

/// A token as it is listed.
#[derive(Debug, Clone, serde::Serialize)]
#[expect(missing_docs, reason = "the columns of outboxd.token, explained there")]
pub struct Listed {
    pub id: Uuid,
    pub account_id: String,
    pub operations: Vec<String>,
    pub label: String,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub expires_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub revoked_at: Option<OffsetDateTime>,
}

impl Line {
    /// Who shows this token; `None` if it is unknown, expired or revoked. Never answered from memory: a revoked token is refused
    /// from its commit on.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn caller(&mut self, token: &Token) -> Result<Option<Caller>, StoreError> {
        let mut conn = self.take().await?;
        let hash = token.hash();
        let query = sqlx::query!(
            r#"
            select account_id, coalesce(nullif(label, ''), id::text) as "token!", operations, clock_timestamp() as "now!" from outboxd.token
            where token_hash = $1 and revoked_at is null and (expires_at is null or expires_at > clock_timestamp())
            "#,
            hash.as_slice(),
        );
        let row = self.bound(query.fetch_optional(&mut conn)).await?;
        self.put(conn).await?;
        Ok(row.map(|row| Caller {
            account_id: row.account_id,
            token: row.token,
            scopes: row.operations.iter().filter_map(|name| name.parse().ok()).collect(),
            now: row.now,
        }))
    }
}

/// Stores a token's hash and what it allows, and returns the id by which it is revoked.
///
/// # Errors
/// When the database cannot be written.
pub async fn create(
    conn: &mut PgConnection,
    token: &Token,
    account_id: &str,
    scopes: &[Scope],
    label: &str,
    expires_at: Option<OffsetDateTime>,
) -> Result<Uuid, sqlx::Error> {
    let operations: Vec<String> = scopes.iter().map(|scope| scope.name().to_owned()).collect();
    let hash = token.hash();
    sqlx::query_scalar!(
        "insert into outboxd.token (id, token_hash, account_id, operations, label, expires_at)
         values (outboxd.uuid_v7(), $1, $2, $3, $4, $5) returning id",
        hash.as_slice(),
        account_id,
        &operations,
        label,
        expires_at,
    )
    .fetch_one(conn)
    .await
}

/// Every token, or those of one account, the oldest first.
///
/// # Errors
/// When the database cannot be read.
pub async fn list(conn: &mut PgConnection, account_id: Option<&str>) -> Result<Vec<Listed>, sqlx::Error> {
    sqlx::query_as!(
        Listed,
        "select id, account_id, operations, label, created_at, expires_at, revoked_at from outboxd.token
         where $1::text is null or account_id = $1 order by id",
        account_id,
    )
    .fetch_all(conn)
    .await
}

/// Revokes a token for ever; `false` if there is none of this id. One that was revoked before keeps its time.
///
/// # Errors
/// When the database cannot be written.
pub async fn revoke(conn: &mut PgConnection, id: Uuid) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!("update outboxd.token set revoked_at = coalesce(revoked_at, now()) where id = $1", id)
        .execute(conn)
        .await?;
    Ok(done.rows_affected() > 0)
}
