//! The console's operators and their sessions. Tokens and cookies are never here, only their hashes.

use std::time::Duration;

use serde::Serialize;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::operator::Role;

use super::StoreError;

/// How long a session that is in use is not written again, at most: each page would be a commit. Less where little idling is allowed.
const SEEN_EVERY_SECONDS: f64 = 60.0;

/// An operator as listed.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the columns of outboxd.operator, explained there")]
pub struct Listed {
    pub name: String,
    pub role: String,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    pub created_by: String,
    #[serde(with = "time::serde::rfc3339::option")]
    pub disabled_at: Option<OffsetDateTime>,
    /// Who they are to the identity provider.
    pub identity: Option<String>,
    /// Sessions that are open.
    pub sessions: i64,
}

/// What is needed to check a sign-in.
#[derive(Debug, Clone)]
pub struct Known {
    /// The operator.
    pub id: Uuid,
    /// The hash of the token.
    pub token_hash: String,
    /// The first octets of its SHA-256; `None` for a token of an earlier release.
    pub token_check: Option<Vec<u8>>,
}

/// Who is signed in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedIn {
    /// The operator's name.
    pub name: String,
    /// What they may do.
    pub role: Role,
}

/// What is stored of a token.
#[derive(Debug, Clone)]
pub struct TokenHash {
    /// Its Argon2id hash, in the PHC string format.
    pub hash: String,
    /// The first octets of its SHA-256.
    pub check: [u8; 4],
}

/// How somebody proves who they are.
#[derive(Debug, Clone, Copy)]
pub enum Proof<'a> {
    /// By this token.
    Token(&'a TokenHash),
    /// By the identity provider's word that they are this one.
    Identity(&'a str),
}

/// What stands for a hash where there is no token: no token has it.
const NO_TOKEN: &str = "-";

/// Adds an operator; `false` if the name, or the identity, is taken.
///
/// # Errors
/// When the database fails.
pub async fn add(
    conn: &mut PgConnection,
    name: &str,
    role: Role,
    proof: Proof<'_>,
    created_by: &str,
) -> Result<bool, sqlx::Error> {
    let (token_hash, token_check, identity) = match proof {
        Proof::Token(token) => (token.hash.as_str(), Some(token.check.as_slice()), None),
        Proof::Identity(identity) => (NO_TOKEN, None, Some(identity)),
    };
    let added = sqlx::query!(
        "insert into outboxd.operator (id, name, role, token_hash, created_by, identity, token_check) values ($1, $2, $3, $4, $5, $6, $7)
         on conflict do nothing",
        Uuid::now_v7(),
        name,
        role.name(),
        token_hash,
        created_by,
        identity,
        token_check,
    )
    .execute(conn)
    .await?;
    Ok(added.rows_affected() > 0)
}

/// All operators, by name.
///
/// # Errors
/// When the database cannot be read.
pub async fn list(conn: &mut PgConnection) -> Result<Vec<Listed>, sqlx::Error> {
    sqlx::query_as!(
        Listed,
        r#"
        select o.name, o.role, o.created_at, o.created_by, o.disabled_at, o.identity,
            (select count(*) from outboxd.session s where s.operator_id = o.id and s.expires_at > now()) as "sessions!"
        from outboxd.operator o order by o.name
        "#
    )
    .fetch_all(conn)
    .await
}

/// Ends what an operator may do, with every session, at once; `false` where there is none, or not any more.
///
/// # Errors
/// When the database fails.
pub async fn disable(conn: &mut PgConnection, name: &str) -> Result<bool, sqlx::Error> {
    let mut tx = conn.begin().await?;
    let disabled =
        sqlx::query!("update outboxd.operator set disabled_at = now() where name = $1 and disabled_at is null", name)
            .execute(&mut *tx)
            .await?
            .rows_affected();
    close_all(&mut tx, name).await?;
    tx.commit().await?;
    Ok(disabled > 0)
}

/// Ends every session of an operator.
///
/// # Errors
/// When the database fails.
pub async fn close_all(conn: &mut PgConnection, name: &str) -> Result<u64, sqlx::Error> {
    let closed = sqlx::query!(
        "delete from outboxd.session s using outboxd.operator o where o.id = s.operator_id and o.name = $1",
        name
    )
    .execute(conn)
    .await?;
    Ok(closed.rows_affected())
}

/// An operator who may sign in by a token.
///
/// # Errors
/// When the database cannot be read.
pub async fn known(conn: &mut PgConnection, name: &str) -> Result<Option<Known>, sqlx::Error> {
    sqlx::query_as!(
        Known,
        "select id, token_hash, token_check from outboxd.operator
         where name = $1 and disabled_at is null and token_hash <> $2",
        name,
        NO_TOKEN,
    )
    .fetch_optional(conn)
    .await
}

/// The operator whom the identity provider calls this, if they may sign in.
///
/// # Errors
/// When the database cannot be read.
pub async fn identified(conn: &mut PgConnection, identity: &str) -> Result<Option<(Uuid, String)>, sqlx::Error> {
    let found =
        sqlx::query!("select id, name from outboxd.operator where identity = $1 and disabled_at is null", identity)
            .fetch_optional(conn)
            .await?;
    Ok(found.map(|found| (found.id, found.name)))
}

/// Opens a session, and removes those that have ended; `false` if the operator may not sign in any more.
///
/// # Errors
/// When the database fails.
pub async fn open_session(
    conn: &mut PgConnection,
    id_hash: &[u8; 32],
    operator: Uuid,
    lifetime: Duration,
) -> Result<bool, sqlx::Error> {
    sqlx::query!("delete from outboxd.session where expires_at <= now()").execute(&mut *conn).await?;
    let opened = sqlx::query!(
        "insert into outboxd.session (id_hash, operator_id, expires_at)
         select $1, id, now() + make_interval(secs => $3) from outboxd.operator where id = $2 and disabled_at is null",
        id_hash.as_slice(),
        operator,
        lifetime.as_secs_f64(),
    )
    .execute(conn)
    .await?;
    Ok(opened.rows_affected() > 0)
}

/// Who has this session; `None` if it has ended, was not used for `idle`, or its operator may not any more. `uses` says whether
/// somebody uses it now, or a page only follows.
///
/// # Errors
/// When the database fails.
pub async fn session(
    conn: &mut PgConnection,
    id_hash: &[u8; 32],
    idle: Duration,
    uses: bool,
) -> Result<Option<SignedIn>, StoreError> {
    let row = sqlx::query!(
        r#"
        select o.name, o.role, s.last_seen_at < now() - make_interval(secs => $3) as "stale!"
        from outboxd.session s join outboxd.operator o on o.id = s.operator_id
        where s.id_hash = $1 and s.expires_at > now() and s.last_seen_at > now() - make_interval(secs => $2)
          and o.disabled_at is null
        "#,
        id_hash.as_slice(),
        idle.as_secs_f64(),
        SEEN_EVERY_SECONDS.min(idle.as_secs_f64() / 4.0),
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    if uses && row.stale {
        sqlx::query!("update outboxd.session set last_seen_at = now() where id_hash = $1", id_hash.as_slice())
            .execute(conn)
            .await?;
    }
    let role = row.role.parse().map_err(|_| StoreError::Unknown { what: format!("role `{}`", row.role) })?;
    Ok(Some(SignedIn { name: row.name, role }))
}

/// Ends a session.
///
/// # Errors
/// When the database fails.
pub async fn close_session(conn: &mut PgConnection, id_hash: &[u8; 32]) -> Result<(), sqlx::Error> {
    sqlx::query!("delete from outboxd.session where id_hash = $1", id_hash.as_slice()).execute(conn).await?;
    Ok(())
}
