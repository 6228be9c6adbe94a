//! An API's own operation with a receipt: stored once, answered the same for ever. Checks its own claim.
//!
//! `DATABASE_URL=postgres://… cargo run --example own_api`, on a database with outboxd's migrations.

#![expect(clippy::print_stdout, reason = "it says what it has shown")]

use anyhow::{Context as _, ensure};
use outboxd::{NewNotification, Operation, RequestKey, ReserveError, Reserved, complete, enqueue, reserve};
use sqlx::{Connection as _, PgConnection};

/// What a caller is answered.
#[derive(Debug, Clone, PartialEq)]
struct Answer {
    status: u16,
    body: String,
}

/// Creates an order, or answers as when it was created. With `lose` the answer to the commit is lost.
async fn create_order(url: &str, key: &str, item: &str, lose: bool) -> anyhow::Result<Option<Answer>> {
    let mut conn = PgConnection::connect(url).await?;
    let operation = Operation {
        account_id: "example".to_owned(),
        operation: "orders.create".to_owned(),
        request_key: RequestKey::new(key)?,
    };
    let mut tx = conn.begin().await?;
    sqlx::query("set local lock_timeout = '2s'").execute(&mut *tx).await?;
    let answer = match reserve(&mut tx, &operation, format!("1 {item}").as_bytes()).await? {
        Reserved::Known { status, body } => Answer { status, body },
        Reserved::New => {
            let order: String = sqlx::query_scalar("insert into own_order (item) values ($1) returning id::text")
                .bind(item)
                .fetch_one(&mut *tx)
                .await?;
            let notification = enqueue(
                &mut tx,
                &NewNotification {
                    account_id: operation.account_id.clone(),
                    sender: "shop@example.org".to_owned(),
                    recipient: "jo@example.net".to_owned(),
                    subject: "Your order".to_owned(),
                    body_text: Some(format!("{item} is on its way.")),
                    message_ref: Some(order.clone()),
                    ..NewNotification::default()
                },
            )
            .await?;
            let body = format!("{{\"order\": \"{order}\"}}");
            complete(&mut tx, &operation, 201, &body, &[notification]).await?;
            Answer { status: 201, body }
        }
    };
    tx.commit().await?;
    // As if the connection had broken before the acknowledgement came: the caller of this function knows nothing.
    Ok(if lose { None } else { Some(answer) })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("DATABASE_URL").context("DATABASE_URL")?;
    let mut conn = PgConnection::connect(&url).await?;
    sqlx::query(
        "create table if not exists own_order (id uuid primary key default gen_random_uuid(), item text not null)",
    )
    .execute(&mut conn)
    .await?;
    let run = format!("run-{}", std::process::id());

    let lost = create_order(&url, &run, "a chair", true).await?;
    ensure!(lost.is_none());
    let settled = create_order(&url, &run, "a chair", false).await?.context("an answer")?;
    println!("the answer was lost, and asking again gave {} {}", settled.status, settled.body);
    ensure!(create_order(&url, &run, "a chair", false).await? == Some(settled.clone()), "the same answer, for ever");

    let mismatch = create_order(&url, &run, "a table", false).await.err().context("other content must be refused")?;
    ensure!(matches!(mismatch.downcast_ref(), Some(ReserveError::PayloadMismatch)), "{mismatch}");
    println!("other content under the same key: {mismatch}");

    let (orders, mails): (i64, i64) = sqlx::query_as(
        "select count(*), count(x.id) from own_order o left join outboxd.outbox x on x.message_ref = o.id::text
         where position(o.id::text in $1) > 0 or o.item = 'a table'",
    )
    .bind(&settled.body)
    .fetch_one(&mut conn)
    .await?;
    ensure!((orders, mails) == (1, 1), "{orders} orders, {mails} notifications");
    println!("one order, one notification");
    Ok(())
}
