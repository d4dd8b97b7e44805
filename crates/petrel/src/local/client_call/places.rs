//! The limit of outstanding calls: a call without a free place is refused, or waits.

use std::collections::VecDeque;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::ptr;
use std::task::{Context, Poll, Waker};

use petrel_planted::planted;

use crate::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering, lock};

/// A number of places. One atomic operation takes or returns a free place. Waiters queue, and a returned place goes to
/// the first of them.
pub(crate) struct Places {
    count: usize,
    free: AtomicUsize,
    /// Number of queued waiters: a returned place checks only this.
    waiting: AtomicUsize,
    queue: Mutex<VecDeque<Arc<Waiter>>>,
    is_closed: AtomicBool,
}

/// A place, held until dropped.
pub(crate) struct Place(Arc<Places>);

/// The endpoint is gone, and with it the places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

struct Waiter {
    /// Whether a place was handed over.
    has_place: AtomicBool,
    waker: Mutex<Waker>,
}

impl Places {
    pub(crate) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self {
            count,
            free: AtomicUsize::new(count),
            waiting: AtomicUsize::new(0),
            queue: Mutex::new(VecDeque::new()),
            is_closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn free(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }

    pub(crate) fn are_all_free(&self) -> bool {
        self.free() == self.count
    }

    pub(crate) fn has_one_taken(&self) -> bool {
        self.free() + 1 == self.count
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn try_take(self: &Arc<Self>) -> Option<Place> {
        self.take_one().then(|| Place(Arc::clone(self)))
    }

    pub(crate) fn take(self: &Arc<Self>) -> TakePlace {
        TakePlace { places: Arc::clone(self), waiter: None }
    }

    /// Refuses places from now on, and wakes all waiters.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *lock(&self.queue));
        let before = self.waiting.fetch_sub(waiting.len(), Ordering::SeqCst);
        assert!(before >= waiting.len(), "each waiter in the queue was counted");
        if !planted("client_waiters_not_told") {
            waiting.iter().for_each(|waiter| waiter.wake());
        }
    }

    fn take_one(&self) -> bool {
        let one_less = |free: usize| free.checked_sub(1);
        self.free.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
    }

    /// Returns a place. A waiter enters the queue before it looks for a free place, and `give_back` frees the place
    /// before looking into the queue: at least one of them sees the other.
    #[inline]
    fn give_back(&self) {
        self.free.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.hand_on();
        }
    }

    /// Uncounts a waiter that has left the queue.
    fn remove_waiter(&self) {
        let before = self.waiting.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a waiter that leaves the queue was counted");
    }

    #[cold]
    #[inline(never)]
    fn hand_on(&self) {
        let mut woken = Vec::new();
        let mut queue = lock(&self.queue);
        while !queue.is_empty() && self.take_one() {
            woken.extend(queue.pop_front());
            self.remove_waiter();
        }
        // The lock is still held: a waiter that leaves sees whether it has a place.
        woken.iter().for_each(|waiter| waiter.has_place.store(true, Ordering::SeqCst));
        drop(queue);
        woken.iter().for_each(|waiter| waiter.wake());
    }
}

impl Place {
    /// Returns the place like a drop, within the code of the caller: a function for each end of a call takes 10
    /// instructions more.
    #[inline(always)]
    pub(crate) fn free(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: the place is not used again, nor dropped.
        let places = unsafe { ptr::read(&this.0) };
        places.give_back();
    }
}

impl Drop for Place {
    #[inline]
    fn drop(&mut self) {
        self.0.give_back();
    }
}

impl Waiter {
    /// Wakes the waiter without the lock: a waker runs code of an executor, which may poll the waiter at once.
    fn wake(&self) {
        let waker = lock(&self.waker).clone();
        waker.wake();
    }
}

/// A future of a place. Dropping it early leaves the queue, and passes on a place just handed over.
pub(crate) struct TakePlace {
    places: Arc<Places>,
    waiter: Option<Arc<Waiter>>,
}

impl Future for TakePlace {
    type Output = Result<Place, Gone>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(waiter) = &self.waiter {
            lock(&waiter.waker).clone_from(cx.waker());
            if waiter.has_place.load(Ordering::SeqCst) {
                self.waiter = None;
                return Poll::Ready(Ok(Place(Arc::clone(&self.places))));
            }
        }
        if self.places.is_closed.load(Ordering::SeqCst) {
            return Poll::Ready(Err(Gone));
        }
        if self.waiter.is_none() {
            if let Some(place) = self.places.try_take() {
                return Poll::Ready(Ok(place));
            }
            self.enter(cx.waker());
        }
        Poll::Pending
    }
}

impl TakePlace {
    /// Enters the queue. A place that was freed before, or the end of the places, is noticed here.
    fn enter(&mut self, waker: &Waker) {
        let waiter = Waiter { has_place: AtomicBool::new(false), waker: Mutex::new(waker.clone()) };
        let waiter = Arc::new(waiter);
        let mut queue = lock(&self.places.queue);
        queue.push_back(Arc::clone(&waiter));
        self.places.waiting.fetch_add(1, Ordering::SeqCst);
        drop(queue);
        self.waiter = Some(waiter);
        // A place returned before this waiter entered the queue was not handed on.
        if self.places.free.load(Ordering::SeqCst) > 0 && !planted("client_free_place_unseen") {
            self.places.hand_on();
        }
        // The waiter may also miss a wake-up by the endpoint's end.
        if self.places.is_closed.load(Ordering::SeqCst) {
            waker.wake_by_ref();
        }
    }
}

impl Drop for TakePlace {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        let mut queue = lock(&self.places.queue);
        let at = queue.iter().position(|other| Arc::ptr_eq(other, &waiter));
        if let Some(at) = at {
            queue.remove(at);
            self.places.remove_waiter();
        }
        drop(queue);
        let has_place = waiter.has_place.load(Ordering::SeqCst);
        if has_place && !planted("client_handed_place_lost") {
            drop(Place(Arc::clone(&self.places)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Wake;

    use super::*;

    fn poll(take: Pin<&mut TakePlace>) -> Poll<Result<Place, Gone>> {
        take.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Counts wake-ups, and checks that they come without the queue's lock.
    struct Counts {
        places: Arc<Places>,
        woken: AtomicUsize,
    }

    impl Wake for Counts {
        fn wake(self: std::sync::Arc<Self>) {
            assert!(self.places.queue.try_lock().is_ok(), "a waker is called without the lock");
            self.woken.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn counts(places: &Arc<Places>) -> (std::sync::Arc<Counts>, Waker) {
        let (places, woken) = (Arc::clone(places), AtomicUsize::new(0));
        let counts = std::sync::Arc::new(Counts { places, woken });
        (std::sync::Arc::clone(&counts), counts.into())
    }

    fn woken(counts: &Counts) -> usize {
        counts.woken.load(Ordering::SeqCst)
    }

    #[test]
    fn take__wakes_only_the_receiver_of_a_place_by_its_last_waker() {
        let places = Places::new(1);
        let Poll::Ready(Ok(place)) = poll(pin!(places.take())) else { panic!("a place is free") };
        let (mut first, mut second) = (pin!(places.take()), pin!(places.take()));
        let [former, latter, other] = [(); 3].map(|()| counts(&places));
        for (_, waker) in [&former, &latter] {
            assert!(first.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        }
        assert!(second.as_mut().poll(&mut Context::from_waker(&other.1)).is_pending());
        let all = || [&former, &latter, &other].map(|(counts, _)| woken(counts));
        assert_eq!(all(), [0, 0, 0]);
        drop(place);
        assert_eq!(all(), [0, 1, 0]);
        places.close();
        assert_eq!(all(), [0, 1, 1]);
        assert!(matches!(poll(first), Poll::Ready(Ok(_))), "it was handed over before");
    }

    /// Other threads return places or close everything between the search for a free place and the queue.
    #[test]
    fn enter__sees_places_freed_since_the_first_check() {
        let [no_place, a_place, the_end] = [(0, false), (2, false), (0, true)];
        for ((free, is_closed), wakes) in [(no_place, 0), (a_place, 1), (the_end, 1)] {
            let places = Places::new(free);
            if is_closed {
                places.close();
            }
            let (counts, waker) = counts(&places);
            let mut take = pin!(places.take());
            take.enter(&waker);
            assert_eq!(woken(&counts), wakes);
            match poll(take.as_mut()) {
                Poll::Pending => assert_eq!(wakes, 0),
                Poll::Ready(Ok(_place)) => assert_eq!((free, numbers(&places)), (2, (1, 0))),
                Poll::Ready(Err(Gone)) => assert!(is_closed),
            }
        }
        let places = Places::new(3);
        places.hand_on();
        assert_eq!(numbers(&places), (3, 0), "there is nobody to hand a place to");
    }

    /// The numbers of free places and of waiters.
    fn numbers(places: &Places) -> (usize, usize) {
        (places.free(), places.waiting())
    }

    #[test]
    fn places__are_counted_with_their_waiters() {
        let places = Places::new(2);
        assert_eq!(numbers(&places), (2, 0));
        let (one, two) = (places.try_take().unwrap(), places.try_take().unwrap());
        assert_eq!(numbers(&places), (0, 0));
        let mut takes = [(); 4].map(|()| Box::pin(places.take()));
        for (waiting, take) in (1..).zip(&mut takes) {
            assert!(poll(take.as_mut()).is_pending() && poll(take.as_mut()).is_pending());
            assert_eq!(numbers(&places), (0, waiting), "once, however often it looks");
        }
        drop(one);
        assert_eq!(numbers(&places), (0, 3), "the place was handed on");
        let Poll::Ready(Ok(one)) = poll(takes[0].as_mut()) else { panic!("nothing was handed on") };
        let [_, left, waits, closed] = takes;
        drop(left);
        assert_eq!(numbers(&places), (0, 2));
        drop(two);
        drop(waits);
        assert_eq!(numbers(&places), (0, 0), "a place that was handed to nobody is passed on");
        let mut closed = closed;
        let Poll::Ready(Ok(two)) = poll(closed.as_mut()) else { panic!("nothing was passed on") };
        let mut last = Box::pin(places.take());
        assert!(poll(last.as_mut()).is_pending());
        places.close();
        assert_eq!(numbers(&places), (0, 0), "nobody waits for what is gone");
        assert!(matches!(poll(last.as_mut()), Poll::Ready(Err(Gone))));
        assert!(matches!(poll(pin!(places.take())), Poll::Ready(Err(Gone))));
        drop(last);
        assert_eq!(numbers(&places), (0, 0));
        drop((one, two));
        assert_eq!(numbers(&places), (2, 0));
    }

    /// An executor may poll a waiter, which takes the lock of its waker, while it is woken.
    #[test]
    fn wake__is_without_the_lock_of_the_waker() {
        struct Looks(Mutex<Option<Arc<Waiter>>>, AtomicBool);

        impl Wake for Looks {
            fn wake(self: std::sync::Arc<Self>) {
                let waiter = lock(&self.0).take().expect("woken once");
                self.1.store(waiter.waker.try_lock().is_ok(), Ordering::SeqCst);
            }
        }

        let places = Places::new(1);
        let _place = places.try_take().unwrap();
        let looks = std::sync::Arc::new(Looks(Mutex::new(None), AtomicBool::new(false)));
        let waker = Waker::from(std::sync::Arc::clone(&looks));
        let mut take = pin!(places.take());
        assert!(take.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        *lock(&looks.0) = take.waiter.clone();
        places.close();
        assert!(looks.1.load(Ordering::SeqCst));
    }

    panics! {
        remove_waiter__without_one: "a waiter that leaves the queue was counted" =>
            Places::new(1).remove_waiter();
    }
}
