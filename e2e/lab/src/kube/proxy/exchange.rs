//! Serves a client's connection: forwards or answers its requests, one after the other.

use std::io::{BufReader, Error, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use crate::kube::client::Request;
use crate::kube::http::Head;
use crate::kube::proxy::call::{Answer, Call};
use crate::kube::proxy::shared::{Judge, Shared};
use crate::kube::users::User;

/// Ends when the client, the server or the proxy closes the connection.
pub(super) fn serve_client_connection(
    shared: &Shared,
    client: &Arc<TcpStream>,
    from: SocketAddr,
) -> Result<()> {
    client.set_nodelay(true)?;
    shared.lock().sockets.push(Arc::clone(client));
    let outcome = handle_client_requests(shared, client, from);
    // The list has this socket too, so dropping it here would not close the connection.
    let _ = client.shutdown(std::net::Shutdown::Both);
    let is_other = |socket: &Arc<TcpStream>| !Arc::ptr_eq(socket, client);
    shared.lock().sockets.retain(is_other);
    outcome
}

fn handle_client_requests(shared: &Shared, mut client: &TcpStream, from: SocketAddr) -> Result<()> {
    let mut requests = BufReader::new(client);
    while let Some(head) = Head::read(&mut requests)? {
        let mut body = vec![0; head.content_length()];
        requests.read_exact(&mut body)?;
        let call = Call::from_request_head(&head, from);
        let (judge, number) = shared.record(&call);
        let token = match judge(&call) {
            Answer::Pass => call.authorization.as_deref().map_or_else(
                || User::FlannelWithEvents.token(),
                |value| value.trim_start_matches("Bearer ").to_owned(),
            ),
            Answer::As(token) => token,
            Answer::Reply(status, fields, body) => {
                let mut head = Head::for_json_response(status);
                head.fields.extend(fields);
                let length = ("Content-Length".to_owned(), body.len().to_string());
                head.fields.push(length);
                head.write(&mut client)?;
                client.write_all(body.as_bytes())?;
                shared.note_status(number, &call, status);
                continue;
            }
            Answer::Silence => {
                let mut rest = [0];
                // Wait until the client closes the connection.
                while requests.read(&mut rest)? > 0 {}
                return Ok(());
            }
            Answer::Cut => return Ok(()),
        };
        let request = Request {
            method: &call.method,
            target: &call.path,
            token: &token,
            agent: &call.agent,
            content_type: head.field("content-type").unwrap_or_default(),
            body: &body,
        };
        let answer = shared.upstream.send(&request, None);
        let mut answer = answer.map_err(Error::other)?;
        shared.note_status(number, &call, answer.head.status());
        answer.head.set_chunked();
        answer.head.write(&mut client)?;
        let mut piece = vec![0; 64 << 10];
        loop {
            let length = answer.body.read(&mut piece)?;
            let mut chunk = format!("{length:x}\r\n").into_bytes();
            chunk.extend(piece.iter().take(length).chain(b"\r\n"));
            client.write_all(&chunk)?;
            if length == 0 {
                break;
            }
        }
    }
    Ok(())
}

impl Call {
    /// The request arrives now.
    fn from_request_head(head: &Head, from: SocketAddr) -> Call {
        let mut words = head.first.split(' ').map(str::to_owned);
        let text = |name| head.field(name).map(str::to_owned);
        Call {
            from,
            method: words.next().unwrap_or_default(),
            path: words.next().unwrap_or_default(),
            agent: text("user-agent").unwrap_or_default(),
            authorization: text("authorization"),
            status: 0,
            at: Instant::now(),
        }
    }
}

impl Shared {
    /// The result is the test's function that chooses the reaction, and the index of the request in the list.
    fn record(&self, call: &Call) -> (Judge, usize) {
        let mut state = self.lock();
        state.calls.push(call.clone());
        (Arc::clone(&state.judge), state.calls.len() - 1)
    }

    /// Unless a test has cleared the list meanwhile.
    fn note_status(&self, number: usize, call: &Call, status: u16) {
        let mut state = self.lock();
        if let Some(known) = state.calls.get_mut(number).filter(|known| known.at == call.at) {
            known.status = status;
        }
    }
}
