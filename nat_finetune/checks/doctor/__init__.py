"""`nat-finetune doctor`: what is likely to go wrong with a config, said before anything is trained; an area a module."""
