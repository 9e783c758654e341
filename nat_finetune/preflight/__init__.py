"""What is looked at before the first step: is anything held out also trained on, and can the reward be trusted?"""
