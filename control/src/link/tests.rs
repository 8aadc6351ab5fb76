use super::packet::{packet, send};
use super::*;
use hugeswap_sys::{fd, Errno};

const WELCOME: Reply = Reply::Welcome {
    id: 3,
    devices: 1,
    also: Also {
        userfaultfd: false,
        maps: true,
        pagemap: false,
        record: true,
    },
};

#[test]
fn packets_carry_descriptors() {
    let address = {
        let key = format!("test-{}", std::process::id());
        Address::parse(Address::text(&key, [1, 2], "").as_bytes()).unwrap()
    };
    let listening = address.listen().unwrap();
    let ours = address.connect().unwrap();
    let theirs = accept(listening).unwrap();
    let place = Place {
        id: 7,
        key: 1 << 63,
    };
    let mut fds = Descriptors::default();
    Request::Faults.send_with(ours, &[0]).unwrap();
    assert_eq!(
        Request::receive(theirs, &mut fds),
        Ok(Received::Packet(Some(Request::Faults)))
    );
    assert_eq!(fds.as_slice().len(), 1);
    fds.close();
    Request::Call.send(ours).unwrap();
    assert_eq!(
        Request::receive(theirs, &mut fds),
        Ok(Received::Packet(Some(Request::Call)))
    );
    Request::Forked { place }.send(ours).unwrap();
    assert_eq!(
        Request::receive(theirs, &mut fds),
        Ok(Received::Packet(Some(Request::Forked { place })))
    );
    assert_eq!(Request::receive(theirs, &mut fds), Err(Errno::EAGAIN));
    WELCOME.send(theirs, &[0, 1, 2]).unwrap();
    assert_eq!(Reply::receive(ours, &mut fds), Ok(WELCOME));
    assert_eq!(fds.as_slice().len(), 3);
    fds.close();
    let group = Request::Group {
        secret: [5, 6],
        bytes: 1 << 30,
        name: group_name("a name of more than eight bytes").unwrap(),
    };
    group.send(ours).unwrap();
    assert_eq!(
        Request::receive(theirs, &mut fds),
        Ok(Received::Packet(Some(group)))
    );
    let secret = [7, u64::MAX];
    Reply::Group { secret }.send(theirs, &[]).unwrap();
    assert_eq!(Reply::receive(ours, &mut fds), Ok(Reply::Group { secret }));
    assert_eq!(group_name(&"n".repeat(MOST_NAME + 1)), None);
    send(ours, &packet([99, 0, 0, 0]), &[0], 0).unwrap();
    assert_eq!(
        Request::receive(theirs, &mut fds),
        Ok(Received::Packet(None))
    );
    fd::close(ours);
    assert_eq!(Request::receive(theirs, &mut fds), Ok(Received::End));
    fd::close(theirs);
    fd::close(listening);
}

#[test]
fn descriptors_keep_their_places() {
    let [ours, theirs] = pair().unwrap();
    pass(ours, &[0, -1, 2]).unwrap();
    fd::close(ours);
    let mut fds = [7; 4];
    take(theirs, &mut fds).unwrap();
    assert!(fds[0] >= 0 && fds[2] >= 0 && fds[0] != fds[2]);
    assert_eq!([fds[1], fds[3]], [-1, -1]);
    assert!(take(theirs, &mut fds).is_err());
    for f in [fds[0], fds[2], theirs] {
        fd::close(f);
    }
    let [door, outside] = pair().unwrap();
    let ours = knock(outside, Request::Call).unwrap();
    take(door, &mut fds[..1]).unwrap();
    name_sender(fds[0]).unwrap();
    let mut none = Descriptors::default();
    let me = std::process::id();
    let said = |request| Ok((Received::Packet(Some(request)), Some(me)));
    assert_eq!(
        Request::receive_from(fds[0], &mut none),
        said(Request::Call)
    );
    // With descriptors, too.
    Request::Fork.send_with(ours, &[0, 1]).unwrap();
    assert_eq!(
        Request::receive_from(fds[0], &mut none),
        said(Request::Fork)
    );
    assert_eq!(none.as_slice().len(), 2);
    none.close();
    // Nobody waits for who takes no answers.
    let refused = Reply::Refused(Errno::EINVAL);
    while refused.send(fds[0], &[]).is_ok() {}
    assert_eq!(refused.send(fds[0], &[]), Err(Errno::EAGAIN));
    for f in [door, outside, ours, fds[0]] {
        fd::close(f);
    }
}

#[test]
fn doors_behind_addresses() {
    let [ours, theirs] = pair().unwrap();
    let door = Door::of(ours).unwrap();
    let mut text = Address::text("key", [1, 2], "/a@b");
    assert_eq!(Door::split(b"key").1, None);
    let plain = text.clone();
    door.write(&mut text).unwrap();
    assert_eq!(Door::split(text.as_bytes()), (plain.as_bytes(), Some(door)));
    assert!(door.is_there() && Door::of(theirs) != Ok(door));
    fd::close(ours);
    assert!(!door.is_there());
    fd::close(theirs);
    assert_eq!(Door::split(b"key@1.x"), (&b"key"[..], None));
}

#[test]
fn addresses() {
    assert!(Address::parse(b"").is_none());
    assert!(Address::parse(b"key:1:/x").is_none());
    assert!(Address::parse(b"key").is_none());
    let secret = [u64::MAX, 5];
    assert!(Address::parse(Address::text("", secret, "").as_bytes()).is_none());
    assert!(Address::parse(Address::text(&"k".repeat(200), secret, "").as_bytes()).is_none());
    let text = Address::text("key", secret, "/proc/1/fd/3");
    let a = Address::parse(text.as_bytes()).unwrap();
    assert_eq!(a.secret, secret);
    let of_group = Address::with_secret(&text, [3, 4]).unwrap();
    assert_eq!(of_group, Address::text("key", [3, 4], "/proc/1/fd/3"));
    assert_eq!(Address::with_secret("key", [3, 4]), None);
    assert_eq!(a.path(), b"/proc/1/fd/3");
    assert!(a.connect().is_err());
}
