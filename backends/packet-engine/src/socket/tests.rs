//! The socket with a real kernel, over loopback: every message arrives complete, with its sender and ECN
//! field.

use super::*;

fn bind_sender_and_receiver(features: &Features, address: &str) -> (Socket, Socket, SocketAddr) {
    let address: IpAddr = address.parse().unwrap();
    let receiver = Socket::bind(address, 0, features).unwrap();
    receiver.set_buffers_and_options(features, true, address.is_unspecified());
    let to = receiver.socket.local_addr().unwrap().as_socket().unwrap();
    (Socket::bind(address, 0, features).unwrap(), receiver, to)
}

fn receive_datagrams(receiver: &mut Receiver, socket: &Socket) -> Vec<RecvMeta> {
    for _ in 0..1000 {
        match socket.receive(receiver, 64) {
            Ok(count) => {
                return (0..count).map(|index| receiver.meta(index).unwrap()).collect();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("nothing was received");
}

/// The bytes and the ECN field of each datagram in the receive buffer.
fn datagram_bytes_and_ecn(receiver: &mut Receiver, metas: &[RecvMeta]) -> Vec<(Vec<u8>, u8)> {
    let buffer = receiver.buffer().to_vec();
    metas
        .iter()
        .flat_map(|meta| {
            buffer[meta.at.clone()]
                .chunks(meta.segment.max(1))
                .map(|part| (part.to_vec(), meta.ecn))
        })
        .collect()
}

fn message_piece(made: bool, at: u32, len: u32) -> Piece {
    Piece { made, at, len }
}

#[test]
fn messages_arrive_as_they_were_sent() {
    for features in [Features::offload(), Features::mmsg(), Features::plain()] {
        for address in ["127.0.0.1", "::1"] {
            let (from, socket, to) = bind_sender_and_receiver(&features, address);
            let made = [1; 10];
            let read: Vec<u8> = (0..3000u32).map(|n| n as u8).collect();
            // Three datagrams of 1010, 1010 and 510 bytes in one send, and a single one with a congestion mark.
            let pieces = [
                message_piece(true, 0, 10),
                message_piece(false, 0, 1000),
                message_piece(true, 0, 10),
                message_piece(false, 1000, 1000),
                message_piece(true, 0, 10),
                message_piece(false, 2000, 500),
                message_piece(false, 2500, 77),
            ];
            let many = Message {
                segment: 1010,
                count: 3,
                bytes: 2530,
                tos: 0,
                ..message_of_pieces(to.into(), 0..6)
            };
            let one = Message { segment: 77, bytes: 77, ..message_of_pieces(to.into(), 6..7) };
            let mut sender = Sender::default();
            let (sent, error) = from.send(
                &mut sender,
                &[many, one],
                Pieces { all: &pieces, made: &made, read: &read },
            );
            assert!(error.is_none() && sent == 2, "{error:?}");
            let mut receiver = Receiver::new(if features.batch == 1 { 1 } else { 8 });
            let mut got = Vec::new();
            while got.len() < 4 {
                let metas = receive_datagrams(&mut receiver, &socket);
                for meta in &metas {
                    assert!(meta.from.ip() == to.ip() && !meta.truncated);
                }
                got.extend(datagram_bytes_and_ecn(&mut receiver, &metas));
            }
            let with_head = |range: Range<usize>| ([&made[..], &read[range]].concat(), 0);
            let [a, b, c] = [0..1000, 1000..2000, 2000..2500].map(with_head);
            let want = [a, b, c, (read[2500..2577].to_vec(), 1)];
            assert_eq!(got, want, "{} {address}", features.name);
        }
    }
}

#[test]
fn a_failed_send_is_reported_and_the_rest_is_sent() {
    let features = Features::mmsg();
    let (from, socket, to) = bind_sender_and_receiver(&features, "127.0.0.1");
    let read = vec![0; 100_000];
    let pieces = [10, 70_000, 20].map(|len| message_piece(false, 0, len));
    let messages = [0, 1, 2].map(|n| message_of_pieces(to.into(), n..n + 1));
    let mut sender = Sender::default();
    let pieces = Pieces { all: &pieces, made: &[], read: &read };
    let (sent, error) = from.send(&mut sender, &messages, pieces);
    assert_eq!((sent, error.and_then(|error| error.raw_os_error())), (1, Some(libc::EMSGSIZE)));
    let (sent, error) = from.send(&mut sender, &messages[2..], pieces);
    assert!(sent == 1 && error.is_none());
    let mut receiver = Receiver::new(8);
    let mut lengths = Vec::new();
    while lengths.len() < 2 {
        let metas = receive_datagrams(&mut receiver, &socket);
        lengths.extend(metas.iter().map(|meta| meta.at.len()));
    }
    assert_eq!(lengths, [10, 20]);
}

/// A buffer of six pieces of 100 bytes; each byte is the index of its piece.
fn six_pieces() -> (Vec<u8>, [Piece; 6]) {
    let read = (0..600u16).map(|n| (n / 100) as u8).collect();
    let pieces = [0, 100, 200, 300, 400, 500].map(|at| message_piece(false, at, 100));
    (read, pieces)
}

fn message_of_pieces(to: Endpoint, pieces: Range<usize>) -> Message {
    Message {
        to,
        bytes: 100 * pieces.len(),
        count: pieces.len(),
        pieces,
        segment: 100,
        tos: 1,
        socket: 0,
    }
}

/// Two sockets: one sends queries, the other replies from any address of the host.
struct Dialog {
    name: String,
    asker: Socket,
    answerer: Socket,
    /// The address of the querying node.
    back: SocketAddr,
    /// The address to which it sends.
    asked: SocketAddr,
    sender: Sender,
    receiver: Receiver,
}

impl Dialog {
    fn bind_asker_and_answerer(features: &Features, any: &str, asked: IpAddr) -> Self {
        let (_, answerer, at) = bind_sender_and_receiver(features, any);
        let (_, asker, back) = bind_sender_and_receiver(features, any);
        Self {
            name: format!("{} {any}", features.name),
            asker,
            answerer,
            back,
            asked: SocketAddr::new(asked, at.port()),
            sender: Sender::default(),
            receiver: Receiver::new(if features.batch == 1 { 1 } else { 8 }),
        }
    }

    /// Sends messages, checks that all arrive in order, and hands back their senders.
    fn send_and_check_arrival(&mut self, answers: bool, messages: &[Message]) -> Vec<Endpoint> {
        let name = &self.name;
        let (from, to) =
            if answers { (&self.answerer, &self.asker) } else { (&self.asker, &self.answerer) };
        let (read, pieces) = six_pieces();
        let (sent, error) =
            from.send(&mut self.sender, messages, Pieces { all: &pieces, made: &[], read: &read });
        assert!(
            error.is_none() && sent == messages.len(),
            "{name}: {sent} of {}: {error:?}",
            messages.len()
        );
        let (mut froms, mut got) = (Vec::new(), Vec::new());
        while got.len() < messages.iter().map(|message| message.count).sum() {
            let metas = receive_datagrams(&mut self.receiver, to);
            got.extend(datagram_bytes_and_ecn(&mut self.receiver, &metas));
            froms.extend(metas.iter().map(|meta| meta.from));
        }
        let sent = messages
            .iter()
            .flat_map(|message| message.pieces.clone())
            .map(|piece| (vec![piece as u8; 100], 1));
        assert_eq!(got, sent.collect::<Vec<_>>(), "{name}");
        froms
    }

    /// Sends one query. Returns the querying node's address, and the local address for replies.
    fn send_and_receive_question(&mut self) -> Endpoint {
        let question =
            self.send_and_check_arrival(false, &[message_of_pieces(self.asked.into(), 0..3)])[0];
        assert_eq!(
            (question.source, question.to.port()),
            (Some(self.asked.ip()), self.back.port()),
            "{}",
            self.name
        );
        question
    }
}

fn dialogs_and_lost_addresses() -> Vec<(Dialog, [&'static str; 2])> {
    let mut dialogs = Vec::new();
    for features in [Features::offload(), Features::mmsg(), Features::plain()] {
        for (any, asked, lost) in [
            ("0.0.0.0", "127.0.0.2", ["192.0.2.9", "192.0.2.10"]),
            ("::", "::1", ["2001:db8::9", "2001:db8::10"]),
        ] {
            dialogs.push((
                Dialog::bind_asker_and_answerer(&features, any, asked.parse().unwrap()),
                lost,
            ));
        }
    }
    dialogs
}

#[test]
fn answers_come_from_the_address_that_was_asked() {
    for (mut dialog, _) in dialogs_and_lost_addresses() {
        let question = dialog.send_and_receive_question();
        let answers = dialog.send_and_check_arrival(
            true,
            &[message_of_pieces(question, 0..1), message_of_pieces(question, 1..3)],
        );
        assert!(answers.iter().all(|from| from.to == dialog.asked), "{}: {answers:?}", dialog.name);
        assert_eq!(dialog.sender.take_refused_endpoints(), []);
    }
}

/// All datagrams still arrive, in their order.
#[test]
fn answers_from_a_lost_address_are_sent_from_another() {
    for (mut dialog, lost) in dialogs_and_lost_addresses() {
        let question = dialog.send_and_receive_question();
        let [first, second] =
            lost.map(|lost| Endpoint { source: Some(lost.parse().unwrap()), ..question });
        let late = [
            message_of_pieces(question, 0..1),
            message_of_pieces(first, 1..3),
            message_of_pieces(second, 3..4),
            message_of_pieces(first, 4..5),
            message_of_pieces(question, 5..6),
        ];
        let answers = dialog.send_and_check_arrival(true, &late);
        assert!(
            answers
                .iter()
                .all(|from| Some(from.ip()) != first.source && Some(from.ip()) != second.source),
            "{answers:?}"
        );
        assert_eq!(
            (dialog.sender.take_refused_endpoints(), dialog.sender.take_refused_endpoints()),
            (vec![first, second], vec![])
        );
    }
}

/// A rejected destination does not count against the source address.
#[test]
fn source_is_not_refused_when_the_destination_is_invalid() {
    for (mut dialog, _) in dialogs_and_lost_addresses() {
        let question = dialog.send_and_receive_question();
        let nowhere = Endpoint { to: SocketAddr::new(question.ip(), 0), ..question };
        let (read, pieces) = six_pieces();
        let (sent, error) = dialog.answerer.send(
            &mut dialog.sender,
            &[message_of_pieces(nowhere, 0..1)],
            Pieces { all: &pieces, made: &[], read: &read },
        );
        assert_eq!(
            (
                sent,
                error.and_then(|error| error.raw_os_error()),
                dialog.sender.take_refused_endpoints()
            ),
            (0, Some(libc::EINVAL), vec![]),
            "{}",
            dialog.name
        );
    }
}
