//! A message service of one's own: its table, its transaction, and the notification that exists if and only if the message
//! does. It checks every claim it makes and fails when one does not hold.
//!
//! `tools/with-postgres cargo run --example producer`, or with DATABASE_URL naming a database that `outboxd migrate` has seen.

#![expect(clippy::print_stdout, reason = "an example tells what it does")]

use anyhow::{Context as _, Result, bail, ensure};
use outboxd::{EnqueueError, NewNotification, NotificationId, enqueue};
use sqlx::postgres::PgDatabaseError;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

/// What the service's own user asks for.
#[derive(Clone)]
struct Post {
    /// Made once, before the first attempt, and kept over retries: the key of this intent.
    key: String,
    account: String,
    recipient: String,
    text: String,
}

impl Post {
    fn notification(&self) -> NewNotification {
        NewNotification {
            account_id: self.account.clone(),
            sender: "shop@example.org".to_owned(),
            recipient: self.recipient.clone(),
            subject: "You have a message".to_owned(),
            body_text: Some(self.text.clone()),
            dedup_key: Some(self.key.clone()),
            ..NewNotification::default()
        }
    }
}

/// Stores the message and its notification in the caller's transaction.
async fn write(tx: &mut PgConnection, post: &Post) -> Result<NotificationId, EnqueueError> {
    let id = enqueue(tx, &post.notification()).await?;
    sqlx::query(
        "insert into shop_message (key, body, notification_id) values ($1, $2, $3) on conflict (key) do nothing",
    )
    .bind(&post.key)
    .bind(&post.text)
    .bind(id.0)
    .execute(tx)
    .await?;
    Ok(id)
}

/// How many messages and how many notifications there are of a key.
async fn stored(conn: &mut PgConnection, post: &Post) -> Result<(i64, i64)> {
    let counts = sqlx::query_as(
        "select (select count(*) from shop_message where key = $1),
            (select count(*) from outboxd.outbox where account_id = $2 and dedup_key = $1)",
    );
    Ok(counts.bind(&post.key).bind(&post.account).fetch_one(conn).await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let url =
        std::env::var("DATABASE_URL").context("DATABASE_URL must name a database that `outboxd migrate` has seen")?;
    let mut conn = PgConnection::connect(&url).await?;
    sqlx::query(
        "create table if not exists shop_message
            (key text primary key, body text not null, notification_id uuid not null references outboxd.outbox (id))",
    )
    .execute(&mut conn)
    .await?;
    let post = Post {
        key: format!("post-{}", Uuid::now_v7()),
        account: "example".to_owned(),
        recipient: "jo@example.net".to_owned(),
        text: "Your order is on its way.".to_owned(),
    };

    // Nothing of it happened.
    let mut tx = conn.begin().await?;
    write(&mut tx, &post).await?;
    tx.rollback().await?;
    ensure!(stored(&mut conn, &post).await? == (0, 0), "a rollback left something");
    println!("rolled back: no message, no notification");

    // All of it happened.
    let mut tx = conn.begin().await?;
    let id = write(&mut tx, &post).await?;
    tx.commit().await?;
    ensure!(stored(&mut conn, &post).await? == (1, 1), "a commit did not store both");
    println!("committed:   one message, and notification {id}");

    // The answer to the commit was lost, say, and the service tries again with the key it kept.
    let mut tx = conn.begin().await?;
    let again = write(&mut tx, &post).await?;
    tx.commit().await?;
    ensure!(again == id, "the same key and content gave another id: {again}");
    ensure!(stored(&mut conn, &post).await? == (1, 1), "a retry stored something");
    println!("tried again: the same notification, and nothing more stored");

    // The same key for something else is a mistake of the caller's, and says so.
    let other_words = Post { text: "Your order is delayed.".to_owned(), ..post.clone() };
    let mut tx = conn.begin().await?;
    match write(&mut tx, &other_words).await {
        Err(EnqueueError::KeyReused { problem, remedy }) => println!("refused:     {problem}\n             {remedy}"),
        other => bail!("a key was used for other content, and this came of it: {other:?}"),
    }
    tx.rollback().await?;

    // What cannot be sent is refused at once, with the field and the remedy.
    let nowhere =
        Post { key: format!("post-{}", Uuid::now_v7()), recipient: "jo@example..net".to_owned(), ..post.clone() };
    let mut tx = conn.begin().await?;
    match write(&mut tx, &nowhere).await {
        Err(EnqueueError::Invalid { field, problem, remedy }) => {
            ensure!(field == "recipient", "the refused field is {field}");
            println!("refused:     {problem}\n             {remedy}");
        }
        other => bail!("the address was not refused: {other:?}"),
    }
    tx.rollback().await?;
    ensure!(stored(&mut conn, &nowhere).await? == (0, 0), "a refusal left something");

    plain_sql(&mut conn, &post, id).await
}

/// The same through SQL alone, as a producer in any language does it. Both forms are one: the key and content that the Rust
/// form stored as `known` are known here too.
async fn plain_sql(conn: &mut PgConnection, post: &Post, known: NotificationId) -> Result<()> {
    const ENQUEUE: &str = "select outboxd.enqueue(account_id => $1, sender => 'shop@example.org', recipient => $2,
        subject => 'You have a message', body_text => $3, dedup_key => $4)";
    let id: Uuid = sqlx::query_scalar(ENQUEUE)
        .bind(&post.account)
        .bind(&post.recipient)
        .bind(&post.text)
        .bind(&post.key)
        .fetch_one(&mut *conn)
        .await?;
    ensure!(id == known.0, "the SQL form gave another id for the same key and content: {id}");
    println!("plain SQL:   the same key and content, the same notification");

    for (text, key, sqlstate, column) in
        [("Other words.", post.key.as_str(), "OB002", "dedup_key"), ("", "another", "OB001", "body_text")]
    {
        let refused: Result<Uuid, _> = sqlx::query_scalar(ENQUEUE)
            .bind(&post.account)
            .bind(&post.recipient)
            .bind(text)
            .bind(key)
            .fetch_one(&mut *conn)
            .await;
        let Err(sqlx::Error::Database(error)) = refused else { bail!("expected {sqlstate}, got {refused:?}") };
        let error = error.downcast_ref::<PgDatabaseError>();
        ensure!((error.code(), error.column()) == (sqlstate, Some(column)), "expected {sqlstate}, got {error:?}");
        println!("plain SQL:   {} {}: {}", error.code(), column, error.hint().context("a refusal without a remedy")?);
    }
    Ok(())
}
