//! Futures on an endpoint's own thread, over the real transports.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::common::{ECHO, Server, client, over, pattern};
use petrel::endpoint::{CallOptions, EndpointConfig, IdlePolicy};
use petrel::task::Parallel;
use petrel::{Endpoint, Execution, Status};

/// Answers with the number of bytes in the request, each equal to the request's last.
const GROW: u16 = 2;
/// Answers when the server's latch is opened.
const WAIT: u16 = 3;

fn serve(endpoint: &mut Endpoint) {
    endpoint.on(GROW, |_, cx, request| {
        let len = u32::from_le_bytes(request.data()[..4].try_into().unwrap()) as usize;
        let fill = request.data()[4];
        request.reply_with(cx, len, |_, out| {
            out.fill(fill);
            len
        })
    });
    let waiting = Rc::new(RefCell::new(Vec::new()));
    endpoint.on(WAIT, move |_, cx, request| {
        if request.data() == b"open" {
            for responder in waiting.borrow_mut().drain(..) {
                petrel::endpoint::Responder::reply(responder, cx, b"opened");
            }
            return request.reply(cx, b"");
        }
        let (responder, handled) = request.defer(cx);
        waiting.borrow_mut().push(responder);
        handled
    });
}

fn grow_request(len: u32, fill: u8) -> Vec<u8> {
    [&len.to_le_bytes()[..], &[fill]].concat()
}

#[test]
fn responses_of_any_length_find_room_over_both_transports() {
    for shm in [false, true] {
        let server = Server::start(over(true, true), "127.0.0.1:0", serve);
        let mut client = client(over(!shm, shm));
        let handle = client.handle();
        let before = client.buffers_in_use();
        client.block_on(async {
            let session = handle.connect(server.address).await.unwrap();
            for (number, len) in
                [0, 1, 1199, 1200, 1201, 1500, 65_536, 70_000, 5 << 20].into_iter().enumerate()
            {
                let reply = session.call(GROW, &grow_request(len, number as u8)).await.unwrap();
                assert_eq!(reply.len(), len as usize);
                assert!(reply.iter().all(|byte| *byte == number as u8));
            }
            let failure = session.call(GROW, &grow_request((8 << 20) + 1, 0)).await.unwrap_err();
            assert_eq!(failure.status, Status::ResourceExhausted);
        });
        assert_eq!(client.buffers_in_use(), before);
    }
}

#[test]
fn parallel__calls_are_outstanding_at_once_and_end_in_any_order() {
    let server = Server::start(over(true, true), "127.0.0.1:0", serve);
    let mut client = client(EndpointConfig::default());
    let handle = client.handle();
    client.block_on(async {
        let session = handle.connect(server.address).await.unwrap();
        let mut first = session.call(WAIT, b"").started();
        let second = session.call(ECHO, b"second").started();
        assert_eq!(&second.await.unwrap()[..], b"second");
        assert!(first.try_take().is_none());
        session.call(WAIT, b"open").await.unwrap();
        assert_eq!(&first.await.unwrap()[..], b"opened");
    });
}

#[test]
fn parallel_keeps_to_its_limit_and_gives_every_answer_once() {
    let server = Server::start(over(true, true), "127.0.0.1:0", |_| {});
    let mut client = client(EndpointConfig::default());
    let handle = client.handle();
    let answers = client.block_on(async {
        let session = handle.connect(server.address).await.unwrap();
        let mut calls = Parallel::new(20);
        let mut answers = vec![0; 2_000];
        for number in 0..answers.len() {
            calls.has_room().await;
            calls.push(number as u64, session.call(ECHO, &pattern(40, number as u64)).started());
            assert!(calls.outstanding() <= 20);
            while let Some((label, answer)) = calls.try_next() {
                assert_eq!(answer.unwrap()[..], pattern(40, label)[..]);
                answers[label as usize] += 1;
            }
        }
        while let Some((label, answer)) = calls.next().await {
            assert_eq!(answer.unwrap()[..], pattern(40, label)[..]);
            answers[label as usize] += 1;
        }
        answers
    });
    assert!(answers.iter().all(|count| *count == 1));
}

#[test]
fn tasks_run_beside_each_other_and_sleep() {
    let mut client = client(EndpointConfig::default());
    let handle = client.handle();
    let order = Rc::new(RefCell::new(Vec::new()));
    let late = handle.spawn({
        let (handle, order) = (handle.clone(), Rc::clone(&order));
        async move {
            handle.sleep(Duration::from_millis(20)).await;
            order.borrow_mut().push("late");
            7
        }
    });
    let early = handle.spawn({
        let (handle, order) = (handle.clone(), Rc::clone(&order));
        async move {
            handle.sleep(Duration::from_millis(1)).await;
            order.borrow_mut().push("early");
        }
    });
    let result = client.block_on(async {
        let forever = std::future::pending::<()>();
        let over = handle.timeout(Duration::from_millis(2), forever).await.unwrap_err();
        assert_eq!(
            (over.status, &over.message[..], over.execution),
            (Status::DeadlineExceeded, "the time is over", Execution::MayHaveExecuted)
        );
        assert_eq!(handle.timeout(Duration::from_secs(60), async { 3 }).await, Ok(3));
        early.await;
        late.await
    });
    assert_eq!((result, &order.borrow()[..]), (7, &["early", "late"][..]));
}

#[test]
fn abort__ends_the_task_at_once_and_drops_its_values() {
    let mut client = client(EndpointConfig::default());
    let handle = client.handle();
    let kept = Rc::new(Cell::new(0));
    let task = handle.spawn({
        let kept = Rc::clone(&kept);
        async move {
            kept.set(1);
            std::future::pending::<()>().await;
            kept.set(2);
        }
    });
    client.block_on(async { handle.sleep(Duration::from_millis(1)).await });
    assert_eq!((kept.get(), Rc::strong_count(&kept)), (1, 2));
    task.abort();
    assert_eq!((kept.get(), Rc::strong_count(&kept)), (1, 1));
}

/// A flag set by another thread.
#[derive(Default)]
struct Flag(Mutex<(bool, Option<Waker>)>);

impl Flag {
    fn set(&self) {
        let mut flag = self.0.lock().unwrap();
        flag.0 = true;
        if let Some(waker) = flag.1.take() {
            waker.wake();
        }
    }

    async fn wait(&self) {
        poll_fn(|cx| {
            let mut flag = self.0.lock().unwrap();
            if flag.0 {
                return Poll::Ready(());
            }
            flag.1 = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// The endpoint sleeps in the kernel without a timer: a lost wake-up would leave it there.
#[test]
fn other_threads_wake_tasks_of_an_endpoint_that_sleeps() {
    let mut config = EndpointConfig::default();
    config.idle = IdlePolicy::Block;
    let mut client = client(config);
    let handle = client.handle();
    for round in 0..200 {
        let flag = Arc::new(Flag::default());
        let setter = Arc::clone(&flag);
        let thread = std::thread::spawn(move || {
            (0..round * 50).for_each(|_| std::hint::spin_loop());
            setter.set();
        });
        if round % 2 == 0 {
            client.block_on(flag.wait());
        } else {
            let task = handle.spawn(async move { flag.wait().await });
            client.block_on(task);
        }
        thread.join().unwrap();
    }
}

/// A task's waker is used again by another task, unless a clone of the waker is left.
#[test]
fn wake__by_the_waker_of_an_ended_task_polls_no_later_task() {
    let mut client = client(over(true, false));
    let handle = client.handle();
    let (kept, polls) = (Rc::new(RefCell::new(None)), Rc::new(Cell::new(0)));
    client.block_on(async {
        let keep = Rc::clone(&kept);
        let ended = handle.spawn(poll_fn(move |cx| {
            *keep.borrow_mut() = Some(cx.waker().clone());
            Poll::Ready(())
        }));
        ended.await;
        let count = Rc::clone(&polls);
        let pending = handle.spawn(poll_fn(move |_| {
            count.set(count.get() + 1);
            Poll::<()>::Pending
        }));
        handle.sleep(Duration::from_millis(1)).await;
        assert_eq!(polls.get(), 1);
        kept.borrow_mut().take().map(Waker::wake).expect("the first task has left its waker");
        handle.sleep(Duration::from_millis(1)).await;
        assert_eq!(polls.get(), 1);
        pending.abort();
    });
}

#[test]
fn closing_a_session_ends_its_calls() {
    let server = Server::start(over(true, true), "127.0.0.1:0", serve);
    let mut client = client(EndpointConfig::default());
    let handle = client.handle();
    client.block_on(async {
        let session = handle.connect(server.address).await.unwrap();
        let waits = session.call(WAIT, b"").started();
        session.close();
        assert_eq!(waits.await.unwrap_err().status, Status::Cancelled);
    });
}

/// Futures may outlive their endpoint; they end, and later operations on them fail.
#[test]
fn drop__of_the_endpoint_ends_its_calls_and_tasks() {
    let server = Server::start(over(true, true), "127.0.0.1:0", serve);
    let mut client = client(EndpointConfig::default());
    let handle = client.handle();
    let (session, mut waits) = client.block_on(async {
        let session = handle.connect(server.address).await.unwrap();
        let waits = session.call(WAIT, b"").started();
        session.call(ECHO, b"").await.unwrap();
        (session, waits)
    });
    let dropped = Rc::new(());
    handle.spawn({
        let dropped = Rc::clone(&dropped);
        async move {
            std::future::pending::<()>().await;
            drop(dropped);
        }
    });
    drop(client);
    assert_eq!(Rc::strong_count(&dropped), 1);
    assert_eq!(waits.try_take().unwrap().unwrap_err().status, Status::Unavailable);
    let mut after = session.call(ECHO, b"").started();
    assert_eq!(after.try_take().unwrap().unwrap_err().execution, Execution::NotSent);
}

/// Endpoints as front, middle and back: the back learns of a cancellation in front.
#[test]
fn deadlines_and_cancellation_go_through_async_handlers() {
    const ASK_BACK: u16 = 9;
    let [begun, heard] = [(); 2].map(|()| Arc::new(std::sync::atomic::AtomicU32::new(0)));
    let left_ns = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (begins, told, left) = (Arc::clone(&begun), Arc::clone(&heard), Arc::clone(&left_ns));
    let back = Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
        let kept = RefCell::new(Vec::new());
        endpoint.on(WAIT, move |_, cx, request| {
            let time_left = request.time_left(cx).map_or(0, |left| left.as_nanos() as u64);
            left.store(time_left, std::sync::atomic::Ordering::SeqCst);
            let (responder, handled) = request.defer(cx);
            let told = Arc::clone(&told);
            cx.on_cancel(&responder, move |_, _| {
                told.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            });
            kept.borrow_mut().push(responder);
            begins.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            handled
        });
    });
    let behind = back.address;
    let middle = Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
        let service = endpoint.client([behind], petrel::client::ClientConfig::default());
        endpoint.on_async(ASK_BACK, move |_, request| {
            let service = service.clone();
            async move {
                let options = CallOptions::new().wait_for_ready();
                service.call(WAIT, request.data()).options(options).await.map(Vec::from)
            }
        });
    });
    let mut client = client(EndpointConfig::default());
    let handle = client.handle();
    client.block_on(async {
        let session = handle.connect(middle.address).await.unwrap();
        // Cancelled by the caller: a call without a deadline.
        let gives_up = session.call(ASK_BACK, b"").started();
        let reaches = async |counter: &std::sync::atomic::AtomicU32, count| {
            while counter.load(std::sync::atomic::Ordering::SeqCst) < count {
                handle.sleep(Duration::from_millis(1)).await;
            }
        };
        reaches(&begun, 1).await;
        drop(gives_up);
        reaches(&heard, 1).await;
        // Ended by its deadline.
        let limit = Duration::from_secs(1);
        let options = CallOptions::new().timeout(limit);
        let failure = session.call(ASK_BACK, b"").options(options).await.unwrap_err();
        assert_eq!(failure.status, Status::DeadlineExceeded);
        let left = left_ns.load(std::sync::atomic::Ordering::SeqCst);
        assert!(left > 0 && left <= limit.as_nanos() as u64, "{left} ns were left at the back");
        reaches(&heard, 2).await;
    });
}

/// Calls awaited by a handler, directly or in spawned tasks, end with the request; other tasks of the thread do not.
#[test]
fn deadline__is_inherited_by_calls_of_a_handler_and_of_the_tasks_that_it_spawns() {
    const LEFT: u16 = 9;
    const RELAY: u16 = 10;
    let back = Server::start(over(true, true), "127.0.0.1:0", |endpoint| {
        endpoint.on(LEFT, |_, cx, request| {
            let left_ns = request.time_left(cx).map_or(u64::MAX, |left| left.as_nanos() as u64);
            request.reply(cx, &left_ns.to_le_bytes())
        });
    });
    let behind = back.address;
    let middle = Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
        let handle = endpoint.handle();
        endpoint.on_async(RELAY, move |_, request| {
            let handle = handle.clone();
            async move {
                let session = handle.connect(behind).await?;
                let spawned = session.clone();
                let task = handle.spawn(async move { spawned.call(LEFT, b"").await });
                let (own, spawned) = (session.call(LEFT, request.data()).await?, task.await?);
                Ok([&own[..], &spawned[..]].concat())
            }
        });
    });
    let mut client = client(EndpointConfig::default());
    let handle = client.handle();
    let left_ns = |answer: &[u8]| {
        let (words, _) = answer.as_chunks::<8>();
        words.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>()
    };
    client.block_on(async {
        let session = handle.connect(middle.address).await.unwrap();
        let minute = CallOptions::new().timeout(Duration::from_secs(60));
        let limited = session.call(RELAY, b"").options(minute).started();
        let unlimited = session.call(RELAY, b"").started();
        let limited = left_ns(&limited.await.unwrap());
        assert_eq!(limited.len(), 2);
        assert!(limited.iter().all(|ns| *ns > 0 && *ns <= 60_000_000_000), "{limited:?}");
        assert_eq!(left_ns(&unlimited.await.unwrap()), [u64::MAX; 2]);
    });
}

/// A failing handler reports any cause in one type.
#[test]
fn error__of_a_call_is_passed_on_by_a_handler() {
    const RELAY: u16 = 9;
    let back = Server::start(over(true, true), "127.0.0.1:0", |endpoint| {
        endpoint.on(ECHO, |_, cx, request| {
            request.fail(cx, Status::FailedPrecondition, "the tank is empty")
        });
    });
    let behind = back.address;
    let middle = Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
        let handle = endpoint.handle();
        endpoint.on_async(RELAY, move |_, request| {
            let handle = handle.clone();
            async move {
                if request.data().is_empty() {
                    return Err(petrel::Error::new(Status::InvalidArgument, "nothing to relay"));
                }
                let session = handle.connect(behind).await?;
                session.call(ECHO, request.data()).await
            }
        });
    });
    let mut client = client(EndpointConfig::default());
    let handle = client.handle();
    client.block_on(async {
        let session = handle.connect(middle.address).await.unwrap();
        let error = session.call(RELAY, b"").await.unwrap_err();
        assert_eq!(error, petrel::Error::new(Status::InvalidArgument, "nothing to relay"));
        let error = session.call(RELAY, b"drive").await.unwrap_err();
        assert_eq!(error, petrel::Error::new(Status::FailedPrecondition, "the tank is empty"));
    });
}
