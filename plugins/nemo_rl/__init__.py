"""NeMo RL as a backend: DPO on our pairs, GRPO and GDPO around our rollouts; as a subprocess or as a Ray job."""
