"""Agents as an application defines them."""

from __future__ import annotations

from swarmkv.agents import Agent

reader = Agent("reader", "Read.", output=int)
under_another_name = Agent("writer", "Write.", output=str)
aliased = Agent[int]("aliased", "Read.", output=int)
twin_one = Agent("twin", "Read.", output=int)
twin_two = Agent("twin", "Read.", output=int)


def make_agent(name: str) -> Agent[int]:
    return Agent(name, "Read.", output=int)
