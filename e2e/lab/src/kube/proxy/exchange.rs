//! Serves a client's connection: forwards or answers its requests, one after the other.

use std::io::{BufRead, BufReader, ErrorKind, Result, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use crate::kube::client::connect;
use crate::kube::http::{Body, Head, relay};
use crate::kube::proxy::call::{Answer, Call};
use crate::kube::proxy::shared::{Judge, Shared};
use crate::kube::users::User;

/// Serves a client until the client, the server or the proxy closes the connection.
pub(super) fn serve(shared: &Shared, client: &TcpStream, from: IpAddr) -> Result<()> {
    client.set_nodelay(true)?;
    shared.lock().sockets.push(client.try_clone()?);
    let outcome = exchanges(shared, client, from);
    // The list has a copy of the socket, so dropping this one would not close the connection.
    let _ = client.shutdown(std::net::Shutdown::Both);
    let address = client.peer_addr().ok();
    shared.lock().sockets.retain(|socket| {
        socket
            .peer_addr()
            .ok()
            .is_some_and(|known| Some(known) != address)
    });
    outcome
}

fn exchanges(shared: &Shared, client: &TcpStream, from: IpAddr) -> Result<()> {
    let mut requests = BufReader::new(client.try_clone()?);
    let mut answers = client.try_clone()?;
    // The connection to the server. The first request that is forwarded opens it.
    let mut upstream = None;
    while let Some(mut head) = Head::read(&mut requests)? {
        shared.gate()?;
        let call = Call::of(&head, from);
        let (judge, number) = shared.record(&call);
        let note = |status: u16| shared.note_status(number, &call, status);
        let token = match judge(&call) {
            Answer::Pass => call
                .authorization
                .clone()
                .unwrap_or_else(|| format!("Bearer {}", User::FlannelWithEvents.token())),
            Answer::As(token) => format!("Bearer {token}"),
            Answer::Reply(status, fields, body) => {
                relay(
                    head.body(None),
                    &mut requests,
                    &mut std::io::sink(),
                    &|| Ok(()),
                )?;
                reply(&mut answers, status, fields, &body)?;
                note(status);
                continue;
            }
            Answer::Silence => {
                let mut rest = [0];
                // Wait until the client closes the connection.
                while std::io::Read::read(&mut requests, &mut rest)? > 0 {}
                return Ok(());
            }
            Answer::Cut => return Ok(()),
        };
        head.set("Authorization", &token);
        head.set("Host", &shared.upstream.to_string());
        if upstream.is_none() {
            let (stream, socket) = connect(&shared.netns, shared.upstream, &shared.tls)
                .map_err(|_| ErrorKind::ConnectionRefused)?;
            shared.lock().sockets.push(socket);
            upstream = Some(BufReader::new(stream));
        }
        let Some(server) = upstream.as_mut() else {
            return Ok(());
        };
        head.write(server.get_mut())?;
        relay(head.body(None), &mut requests, server.get_mut(), &|| Ok(()))?;
        server.get_mut().flush()?;
        let answer = Head::read(server)?.ok_or(ErrorKind::UnexpectedEof)?;
        shared.gate()?;
        note(answer.status());
        answer.write(&mut answers)?;
        let body = answer.body(Some(&call.method));
        relay(body, server as &mut dyn BufRead, &mut answers, &|| {
            shared.gate()
        })?;
        if body == Body::UntilClose {
            return Ok(());
        }
    }
    Ok(())
}

/// Sends the proxy's own response to the client, instead of the server's response.
fn reply(
    answers: &mut TcpStream,
    status: u16,
    fields: Vec<(String, String)>,
    body: &str,
) -> Result<()> {
    let mut answer = Head {
        first: format!("HTTP/1.1 {status} Lab"),
        fields,
    };
    answer.set("Content-Type", "application/json");
    answer.set("Content-Length", &body.len().to_string());
    answer.write(answers)?;
    answers.write_all(body.as_bytes())
}

impl Call {
    /// Creates the record of a request that arrives now.
    fn of(head: &Head, from: IpAddr) -> Call {
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
    /// Adds a request to the list of recorded requests. Returns the test's function that chooses the reaction to the request, and the request's index in the list.
    fn record(&self, call: &Call) -> (Judge, usize) {
        let mut state = self.lock();
        state.calls.push(call.clone());
        (Arc::clone(&state.judge), state.calls.len() - 1)
    }

    /// Records the status of a response, unless a test has cleared the list meanwhile.
    fn note_status(&self, number: usize, call: &Call, status: u16) {
        let mut state = self.lock();
        if let Some(known) = state
            .calls
            .get_mut(number)
            .filter(|known| known.at == call.at)
        {
            known.status = status;
        }
    }
}
