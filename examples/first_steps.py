"""A dream with plain Gymnasium: one environment and a picture of it, then 64 of them with one forward pass a step."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

import dreamenvs  # registers the ids
from dreamenvs.evaluation.pictures import mosaic, write_png

ID = "dreamenvs/STEPVQ-Pong-v0"


def main() -> None:
    env = gym.make(ID, render_mode="rgb_array")
    observation, _ = env.reset(seed=0)
    print("one dream shows", observation.shape, observation.dtype, "and takes", env.action_space)
    frames = [np.asarray(env.render())]
    for _ in range(10):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        frames.append(np.asarray(env.render()))
    print("after ten steps: reward", round(float(reward), 3), "terminated", terminated, "truncated", truncated)
    print("what it looked like:", write_png("first_steps.png", mosaic([np.stack(frames)])))

    envs = gym.make_vec(ID, num_envs=64, obs_type="latent", horizon=50)
    envs.action_space.seed(0)
    features, _ = envs.reset(seed=0)
    print("64 dreams show", features.shape, features.dtype)
    total = np.zeros(64)
    for _ in range(50):
        features, rewards, *_ = envs.step(envs.action_space.sample())
        total += rewards
    print("mean return of 50 random steps:", round(float(total.mean()), 3))
    print("the dream's files are in", dreamenvs.locate(ID))


if __name__ == "__main__":
    main()
