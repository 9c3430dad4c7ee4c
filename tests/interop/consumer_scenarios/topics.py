"""Topics come, grow and go; subscriptions change."""

from __future__ import annotations

from tests.interop.consumer_script import MINE, ConsumerScript, scenario


@scenario({"in": 2, "other": 2})
def subscriptions_change(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in")
    s.beat("a reads both", "a", names=(s.name("in"), s.name("other")), owned=MINE)
    s.describe("both")
    s.beat("a says the same in another order", "a", names=(s.name("other"), s.name("in")), owned=MINE)
    s.describe("no new epoch")
    s.beat("a reads the other alone", "a", names=(s.name("other"),), owned=MINE)
    s.describe("revokes")
    s.beat("a acknowledges", "a", owned=MINE)
    s.beat("a reads nothing", "a", names=(), owned={})
    s.describe("nothing")
    s.beat("a reads the first again", "a", names=(s.name("in"),))
    s.describe("again")


@scenario({"in": 4, "other": 4})
def subscriptions_change_between_assignments(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in", "other", server_assignor="range")
    s.join("b joins", "b", "in", "other", server_assignor="range")
    s.beat("a is told to revoke", "a")
    s.beat("a drops a topic meanwhile", "a", names=(s.name("in"),))
    s.describe("more to revoke")
    s.beat("a acknowledges all", "a", owned={})
    s.beat("b", "b")
    s.beat("b again", "b", owned=MINE)
    s.describe("settled")


@scenario({"in": 4, "other": 2}, assignment_interval_ms=15_000)
def subscription_changes_within_the_interval(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in", "other")
    s.beat("a drops a topic", "a", names=(s.name("in"),))
    s.describe("revokes at once")
    s.beat("a acknowledges", "a", owned=MINE)
    s.describe("keeps the rest")
    s.beat("a takes it back", "a", names=(s.name("in"), s.name("other")), owned=MINE)
    s.describe("the old target holds")


@scenario({"in": 2})
def a_topic_is_not_there(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in", "later")
    s.describe("has what is there")
    s.create_topics({"later": 2})
    s.learn_topics("later")
    s.beat_until("a has the new one", "a", lambda answer: s.count("a") == 4)
    s.describe("both")


@scenario({"in": 2})
def no_topic_is_there(s: ConsumerScript) -> None:
    s.join("a joins", "a", "later")
    s.describe("has nothing")
    s.join("b joins", "b", "later")
    s.describe("two that have nothing")
    s.beat("a", "a", owned=MINE)


@scenario({"in": 2})
def a_topic_grows(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in")
    s.grow_topic("in", 5)
    s.beat_until("a has the new ones", "a", lambda answer: s.count("a") == 5)
    s.describe("grown")


@scenario({"in": 2, "other": 1})
def a_topic_goes(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in", "other")
    s.delete_topic("other")
    s.beat_until("a is told", "a", lambda answer: s.count("a") == 2)
    s.beat("a acknowledges", "a", owned=MINE)
    s.describe("gone")


@scenario({"in": 6, "other": 6, "third": 3})
def different_subscriptions(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in")
    s.join("b joins", "b", "in", "other")
    s.beat("a revokes", "a")
    s.beat("a acknowledges", "a", owned=MINE)
    s.beat("b takes", "b", owned=MINE)
    s.join("c joins", "c", "third")
    s.beat("a", "a", owned=MINE)
    s.beat("b", "b", owned=MINE)
    s.describe("settled")
    s.leave("b leaves", "b")
    s.beat("a takes", "a", owned=MINE)
    s.describe("nobody reads other")
